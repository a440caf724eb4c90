package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// foreign is a host name that is not of this machine. The browser resolves it to 127.0.0.1.
const foreign = "notebook.example"

// frame serves the output of a notebook cell from a port of its own, as a notebook does. It checks that the dashboard
// works in the page's frame, and that a page on another host name cannot embed it. It deletes the file at the end.
//
//	browser frame CHROMIUM FOLDER HTML
func frame(chromium, folder, file string) (err error) {
	defer func() { _ = os.Remove(file) }() // the job ends with it
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	output, err := waitFor(ctx, file)
	if err != nil {
		return err
	}
	_, link, _ := strings.Cut(output, `href="`)
	link, _, _ = strings.Cut(link, `"`)
	address, _, _ := strings.Cut(link, "#")
	const head = "<!doctype html><meta charset=utf-8><body>"
	mux := http.NewServeMux()
	mux.HandleFunc("/cell", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, head+output) })
	mux.HandleFunc("/forced", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `%s<iframe src="%s"></iframe>`, head, address)
	})
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	defer func() { _ = l.Close() }()
	go func() { _ = http.Serve(l, mux) }() // until the listener is closed
	_, port, _ := net.SplitHostPort(l.Addr().String())
	ctx, end := newBrowser(ctx, chromium, chromedp.Flag("host-resolver-rules", "MAP "+foreign+" 127.0.0.1"),
		chromedp.Flag("no-proxy-server", true))
	defer end()
	p := &framed{ctx: ctx, address: address}
	chromedp.ListenTarget(ctx, p.hear)
	if err := chromedp.Run(ctx, runtime.Enable(), log.Enable(), chromedp.EmulateViewport(1200, 900)); err != nil {
		return err
	}
	for i, host := range []string{"127.0.0.1", "localhost"} {
		if err := p.open("http://" + net.JoinHostPort(host, port) + "/cell"); err != nil {
			return err
		}
		if i > 0 { // its cookie belongs to the other name, and its link was used
			if err := p.until("the frame is admitted only once",
				`document.getElementById("badge").textContent.includes("not admitted")`); err != nil {
				return err
			}
			continue
		}
		if err := p.use(filepath.Join(folder, "notebook.png")); err != nil {
			return err
		}
	}
	var frames int
	var text string
	err = chromedp.Run(ctx, chromedp.Navigate("http://"+net.JoinHostPort(foreign, port)+"/cell"),
		chromedp.Evaluate(`document.querySelectorAll("iframe").length`, &frames),
		chromedp.Evaluate(`document.body.innerText`, &text))
	if err == nil && (frames > 0 || !strings.Contains(text, "The link opens once")) {
		err = fmt.Errorf("a page on another name has %d frames, and the text %q", frames, text)
	}
	if err != nil {
		return err
	}
	if err := p.open("http://" + net.JoinHostPort(foreign, port) + "/forced"); err != nil {
		return err
	}
	if err := p.blocked(); err != nil {
		return err
	}
	fmt.Printf("the dashboard works in a notebook's page, and not in a page on another name; a picture is in %s\n", folder)
	return nil
}

// framed is a page with the dashboard in a frame.
type framed struct {
	ctx     context.Context
	address string // of the dashboard

	mu       sync.Mutex // guards the fields below
	contexts []runtime.ExecutionContextID
	said     []string // errors in the log
}

func (p *framed) hear(event any) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch e := event.(type) {
	case *runtime.EventExecutionContextCreated:
		var of struct {
			IsDefault bool `json:"isDefault"`
		}
		_ = json.Unmarshal(e.Context.AuxData, &of) // isolated worlds of extensions do not count
		if of.IsDefault {
			p.contexts = append(p.contexts, e.Context.ID)
		}
	case *runtime.EventExecutionContextsCleared:
		p.contexts = nil
	case *log.EventEntryAdded:
		p.said = append(p.said, e.Entry.Text)
	}
}

// open opens a page.
func (p *framed) open(url string) error {
	p.mu.Lock()
	p.contexts, p.said = nil, nil
	p.mu.Unlock()
	return chromedp.Run(p.ctx, chromedp.Navigate(url))
}

// ask evaluates an expression in the frame. ok is false if the frame is not there.
func (p *framed) ask(expression string, result any) (ok bool) {
	p.mu.Lock()
	contexts := p.contexts
	p.mu.Unlock()
	for _, id := range contexts {
		in := func(e *runtime.EvaluateParams) *runtime.EvaluateParams { return e.WithContextID(id) }
		var own bool
		is := fmt.Sprintf(`window !== top && document.getElementById("badge") !== null && location.port === new URL(%q).port`,
			p.address)
		if chromedp.Run(p.ctx, chromedp.Evaluate(is, &own, in)) == nil && own {
			return chromedp.Run(p.ctx, chromedp.Evaluate(expression, result, in)) == nil
		}
	}
	return false
}

// until waits until an expression is true in the frame.
func (p *framed) until(what, expression string) error {
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		var is bool
		if p.ask(expression, &is) && is {
			return nil
		}
	}
	var text string
	p.ask("document.body.innerText", &text)
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("%s: this is not so in the frame, which shows %q; the log says %q", what, text, p.said)
}

// use kills a server by its button, and waits until its lane shows its successor.
func (p *framed) use(picture string) error {
	const lane = `document.querySelector('[data-process="server:0"]')`
	if err := p.until("the lanes are there", lane+`?.dataset.pid > 0 && !`+lane+`.querySelector("[data-act=kill]").disabled`); err != nil {
		return err
	}
	var pid string
	if !p.ask(`(() => { const pid = `+lane+`.dataset.pid; `+lane+`.querySelector("[data-act=kill]").click(); return pid; })()`, &pid) {
		return fmt.Errorf("the button cannot be pressed")
	}
	err := p.until("server:0 is killed and replaced", fmt.Sprintf(`%s.dataset.pid > 0 && %s.dataset.pid !== %q && `+
		`%s.dataset.state === "serving"`, lane, lane, pid, lane))
	if err != nil {
		return err
	}
	var shot []byte
	if err := chromedp.Run(p.ctx, chromedp.FullScreenshot(&shot, 100)); err != nil {
		return err
	}
	return os.WriteFile(picture, shot, 0o666)
}

// blocked waits until the browser has refused to show the dashboard in the frame.
func (p *framed) blocked() error {
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		p.mu.Lock()
		said := strings.Join(p.said, "\n")
		p.mu.Unlock()
		var shows bool
		if p.ask("true", &shows) {
			return fmt.Errorf("a page on another name embeds the dashboard")
		}
		if strings.Contains(said, "frame-ancestors") {
			return nil
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return fmt.Errorf("the browser says nothing of frame-ancestors, but %q", p.said)
}
