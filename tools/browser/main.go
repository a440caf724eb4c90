// Command browser opens pages in a headless Chromium, as people do: wide, narrow, in light and in dark. It keeps
// a picture of each, and fails when the console has an error, when the page asks for anything but itself, when it
// is wider than the window, or when text of a picture is cut off, too small, or lies on other text.
//
//	browser CHROMIUM FOLDER PAGE...
package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

func main() {
	if len(os.Args) < 4 {
		fmt.Fprintln(os.Stderr, "browser CHROMIUM FOLDER PAGE...\nbrowser live CHROMIUM FOLDER RUN\n"+
			"browser same CHROMIUM FOLDER RUN...\nbrowser frame CHROMIUM FOLDER HTML")
		os.Exit(2)
	}
	var err error
	switch {
	case os.Args[1] == "live" && len(os.Args) == 5:
		err = live(os.Args[2], os.Args[3], os.Args[4])
	case os.Args[1] == "same" && len(os.Args) >= 5:
		err = same(os.Args[2], os.Args[3], os.Args[4:])
	case os.Args[1] == "frame" && len(os.Args) == 5:
		err = frame(os.Args[2], os.Args[3], os.Args[4])
	default:
		err = look(os.Args[1], os.Args[2], os.Args[3:])
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
}

// view is how a page is looked at.
type view struct {
	name  string
	width int64
	dark  string
	open  bool // what is folded away is opened
}

var views = []view{
	{"wide", 1400, "light", false},
	{"wide-dark", 1400, "dark", false},
	{"wide-open", 1400, "light", true},
	{"narrow", 400, "light", false},
	{"narrow-dark", 400, "dark", false},
	{"narrow-open", 400, "light", true},
}

// unfold opens what is folded away.
const unfold = `document.querySelectorAll("details").forEach((d) => { d.open = true })`

// patience is how long all pages together may take.
const patience = 2 * time.Minute

func look(chromium, folder string, pages []string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	ctx, cancel = newBrowser(ctx, chromium)
	defer cancel()
	b := &browser{}
	chromedp.ListenTarget(ctx, b.hear)
	if err := chromedp.Run(ctx, network.Enable(), log.Enable(), runtime.Enable()); err != nil {
		return err
	}
	for _, page := range pages {
		for _, v := range views {
			if err := b.open(ctx, folder, page, v); err != nil {
				return err
			}
		}
	}
	if len(b.wrong) > 0 {
		return errors.New(strings.Join(b.wrong, "\n"))
	}
	fmt.Printf("%d pages looked at in %d ways; pictures are in %s\n", len(pages), len(views), folder)
	return nil
}

// newBrowser starts Chromium.
func newBrowser(
	ctx context.Context, chromium string, more ...chromedp.ExecAllocatorOption,
) (context.Context, context.CancelFunc) {
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.Flag("single-process", true), chromedp.Flag("no-zygote", true), chromedp.DisableGPU)
	ctx, end := chromedp.NewExecAllocator(ctx, append(options, more...)...)
	ctx, cancel := chromedp.NewContext(ctx)
	return ctx, func() { cancel(); end() }
}

type browser struct {
	mu     sync.Mutex
	where  string
	origin string // the only one that the page may ask; "": none
	wrong  []string
}

func (b *browser) complain(format string, args ...any) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.wrong = append(b.wrong, b.where+": "+fmt.Sprintf(format, args...))
}

func (b *browser) hear(event any) {
	switch e := event.(type) {
	case *runtime.EventExceptionThrown:
		b.complain("exception: %s", e.ExceptionDetails.Text)
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			for _, a := range e.Args {
				b.complain("console: %s", a.Value)
			}
		}
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
			b.complain("log: %s", e.Entry.Text)
		}
	case *network.EventRequestWillBeSent:
		url, own := e.Request.URL, b.origin != "" && strings.HasPrefix(e.Request.URL, b.origin)
		if !own && !strings.HasPrefix(url, "file:") && !strings.HasPrefix(url, "data:") {
			b.complain("it asks for %s", url)
		}
	}
}

//go:embed check.js
var check string

func (b *browser) open(ctx context.Context, folder, page string, v view) error {
	path, err := filepath.Abs(page)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.where = page + ", " + v.name
	b.mu.Unlock()
	var found []string
	var picture []byte
	dark := emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{
		{Name: "prefers-color-scheme", Value: v.dark},
	})
	steps := chromedp.Tasks{dark, chromedp.EmulateViewport(v.width, 900), chromedp.Navigate("file://" + path)}
	if v.open {
		steps = append(steps, chromedp.Evaluate(unfold, nil))
	}
	err = chromedp.Run(ctx, append(steps, chromedp.Evaluate(check, &found), chromedp.FullScreenshot(&picture, 100)))
	if err != nil {
		return fmt.Errorf("%s: %w", b.where, err)
	}
	for _, f := range found {
		b.complain("%s", f)
	}
	name := strings.TrimSuffix(filepath.Base(page), filepath.Ext(page)) + "-" + v.name + ".png"
	return os.WriteFile(filepath.Join(folder, name), picture, 0o666)
}
