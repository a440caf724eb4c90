package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// live opens the dashboard of a run that is running, kills and freezes processes by its buttons, reloads it, and
// compares it with the run's directory at the end.
//
//	browser live CHROMIUM FOLDER RUN
func live(chromium, folder, run string) error {
	page, end := openLive(chromium, folder, run)
	defer end()
	page.until("the link is not in the address", `location.hash === ""`)
	page.until("training", badgeSays("training"))
	const firstPaint = `performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? 1e9`
	var paint, again float64 // the first one includes the start of the browser's renderer
	page.do(chromedp.Evaluate(firstPaint, &paint))
	page.until("clocks in the lanes", `document.querySelector('[data-process="worker:0"]').dataset.clock > 5`)
	page.shot("live-wide")
	page.kills("server:0")
	page.kills("worker:1")
	page.do(chromedp.Click(`[data-process="worker:2"] [data-act=freeze]`))
	page.until("worker:2 is replaced because of the freeze", `[...document.querySelectorAll("#events li")].some((e) => `+
		`e.dataset.kind === "detected" && e.textContent.includes("because of a freeze on request"))`)
	page.until("worker:2 works again", `document.querySelector('[data-process="worker:2"]').dataset.state === "serving"`)
	page.shot("live-replaced")
	var before int
	count := `document.querySelectorAll("#events li").length`
	page.do(chromedp.Evaluate(count, &before))
	for range 10 { // other programs on the machine delay a paint: the fastest of some reloads is the page's own time
		page.do(chromedp.Reload())
		page.until("the same events after a reload", fmt.Sprintf("%s >= %d", count, before))
		var took float64
		page.do(chromedp.Evaluate(firstPaint, &took))
		if again == 0 || took < again {
			again = took
		}
		if min(paint, again) <= 200 {
			break
		}
	}
	if min(paint, again) > 200 {
		page.b.complain("the first paint took %.0f ms, and %.0f ms after a reload; at most 200", paint, again)
	}
	page.do(chromedp.Click(`[data-process="coordinator"] [data-act=freeze]`))
	page.until("the coordinator is frozen", `document.querySelector('[data-process="coordinator"]').dataset.state === `+
		`"frozen" && `+badgeSays("frozen: coordinator"))
	page.until("the page hears nothing", badgeSays("no news for "))
	page.shot("live-silent")
	page.do(chromedp.Click(`[data-process="coordinator"] [data-act=resume]`))
	page.until("the page hears the coordinator again", badgeSays("● training"))
	page.kills("coordinator")
	page.until("training goes on", badgeSays("training"))
	page.look(1400, "dark")
	page.shot("live-dark")
	page.look(360, "light")
	page.shot("live-narrow")
	page.look(360, "dark")
	page.shot("live-narrow-dark")
	page.look(1400, "light")
	page.until("the run is done", badgeSays("done"))
	page.same(run)
	page.do(chromedp.Evaluate(`(() => { const t = document.getElementById("time"); t.value = 400;
		t.dispatchEvent(new Event("input")); })()`, nil))
	page.until("the slider shows an earlier time", `document.getElementById("live").getAttribute("aria-pressed") === "false"`)
	page.until("the state at that time", `/ at \d+/.test(document.getElementById("badge").textContent) && !`+
		badgeSays("done"))
	page.shot("live-replay")
	page.do(chromedp.Click("#live"))
	page.until("the slider shows the end", `document.getElementById("live").getAttribute("aria-pressed") === "true"`)
	page.shot("live-done")
	if err := page.verdict(); err != nil {
		return err
	}
	fmt.Printf("the dashboard of %s was used and looked at; its first paint took %.0f ms, and %.0f ms after a reload; "+
		"pictures are in %s\n", run, paint, again, folder)
	return nil
}

// same opens the dashboards of runs one after another while they run, and compares them with their directories at the
// end.
//
//	browser same CHROMIUM FOLDER RUN...
func same(chromium, folder string, runs []string) error {
	for _, run := range runs {
		page, end := openLive(chromium, folder, run)
		page.until("the run is done", badgeSays("done"))
		page.same(run)
		page.shot("same-" + filepath.Base(run))
		err := page.verdict()
		end()
		if err != nil {
			return err
		}
	}
	fmt.Printf("the dashboard of %s has the numbers of summary.json at its end\n", strings.Join(runs, ", "))
	return nil
}

// badgeSays returns the expression for a text in the state of the job.
func badgeSays(text string) string {
	return fmt.Sprintf("document.getElementById('badge').textContent.includes(%q)", text)
}

// openLive opens the dashboard of a run, as soon as that is there.
func openLive(chromium, folder, run string) (page *livePage, end func()) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	page = &livePage{b: &browser{where: run}, folder: folder}
	link, err := waitFor(ctx, filepath.Join(run, "dashboard"))
	if page.err = err; err != nil {
		return page, cancel
	}
	page.b.origin, _, _ = strings.Cut(link, "#")
	var stop context.CancelFunc
	page.ctx, stop = newBrowser(ctx, chromium)
	chromedp.ListenTarget(page.ctx, page.b.hear)
	page.do(network.Enable(), log.Enable(), runtime.Enable())
	page.look(1400, "light")
	page.do(chromedp.Navigate(link), chromedp.WaitVisible("#lanes .lane[data-process]"))
	return page, func() { stop(); cancel() }
}

// waitFor returns the content of a file once it exists.
func waitFor(ctx context.Context, file string) (string, error) {
	for {
		if text, err := os.ReadFile(file); err == nil && strings.HasSuffix(string(text), "\n") {
			return strings.TrimSpace(string(text)), nil
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%s does not appear", file)
		case <-time.After(20 * time.Millisecond):
		}
	}
}

// livePage is an open dashboard. Its first error ends all that follows.
type livePage struct {
	b      *browser
	ctx    context.Context
	folder string
	err    error
}

func (p *livePage) do(steps ...chromedp.Action) {
	if p.err == nil {
		p.err = chromedp.Run(p.ctx, steps...)
	}
}

// verdict returns everything that is wrong.
func (p *livePage) verdict() error {
	if p.err != nil {
		return p.err
	}
	if len(p.b.wrong) > 0 {
		return errors.New(strings.Join(p.b.wrong, "\n"))
	}
	return nil
}

// until waits until an expression is true.
func (p *livePage) until(what, expression string) {
	if p.err != nil {
		return
	}
	var is bool
	err := chromedp.Run(p.ctx, chromedp.Poll(expression, &is, chromedp.WithPollingInterval(50*time.Millisecond),
		chromedp.WithPollingTimeout(40*time.Second)))
	if err != nil {
		p.err = fmt.Errorf("%s: %w", what, err)
		p.shot("live-failed")
	}
}

// look sets the size and the colours of the window.
func (p *livePage) look(width int64, scheme string) {
	p.do(chromedp.EmulateViewport(width, 900), emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: scheme},
	}))
}

// kills kills a process by its button, and waits until its lane shows the death and another process.
func (p *livePage) kills(process string) {
	lane := fmt.Sprintf(`document.querySelector('[data-process="%s"]')`, process)
	var pid string
	p.until(process+" works", lane+`.dataset.pid > 0 && !`+lane+`.querySelector("[data-act=kill]").disabled`)
	p.do(chromedp.Evaluate(lane+".dataset.pid", &pid),
		chromedp.Click(fmt.Sprintf(`[data-process="%s"] [data-act=kill]`, process)))
	p.until(process+" is replaced", fmt.Sprintf(`%s.dataset.pid > 0 && %s.dataset.pid !== "%s" && `+
		`%s.dataset.state === "serving" && [...document.querySelectorAll("#events li")].some((e) => `+
		`e.dataset.kind === "detected" && e.textContent.includes("%s is dead"))`, lane, lane, pid, lane, process))
}

// shot keeps a picture, and checks the page as it is shown.
func (p *livePage) shot(name string) {
	var found []string
	var picture []byte
	failed := p.err
	p.err = nil
	p.do(chromedp.Evaluate(check, &found), chromedp.FullScreenshot(&picture, 100))
	for _, f := range found {
		p.b.complain("%s: %s", name, f)
	}
	if p.err == nil {
		p.err = os.WriteFile(filepath.Join(p.folder, name+".png"), picture, 0o666)
	}
	if failed != nil {
		p.err = failed
	}
}

// same compares the numbers on the page with summary.json.
func (p *livePage) same(run string) {
	if p.err != nil {
		return
	}
	var sum map[string]any
	text, err := os.ReadFile(filepath.Join(run, "summary.json"))
	if err == nil {
		err = json.Unmarshal(text, &sum)
	}
	if err != nil {
		p.err = err
		return
	}
	for id, field := range map[string]string{"n-clock": "clocks", "n-lost": "updates_lost", "n-redone": "clocks_redone"} {
		var shown string
		p.do(chromedp.Evaluate(fmt.Sprintf(`document.getElementById("%s").firstChild.textContent`, id), &shown))
		if want := fmt.Sprint(sum[field]); shown != want {
			p.b.complain("%s is %s, and %s in summary.json", id, shown, want)
		}
	}
	var fields map[string]string
	p.do(chromedp.Evaluate(`Object.fromEntries([...document.querySelectorAll("#summary [data-field]")].map(
		(e) => [e.dataset.field, e.textContent]))`, &fields))
	for name, value := range sum {
		switch v := value.(type) {
		case string, bool:
			if fields[name] != fmt.Sprint(v) {
				p.b.complain("%s is %q, and %v in summary.json", name, fields[name], v)
			}
		case float64:
			var shown float64
			if _, err := fmt.Sscan(fields[name], &shown); err != nil || shown != v {
				p.b.complain("%s is %q, and %v in summary.json", name, fields[name], v)
			}
		}
	}
}
