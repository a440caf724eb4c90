// Package screen is what a person sees of a run: while it goes on, in plain lines or in a panel
// at the bottom of a terminal (View), how it stands (Status), and how it has ended (Ended). It
// takes what there is to show as values, and prints it. It asks nobody and decides nothing.
package screen

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/tally"
)

// View shows a run while it goes on. Nobody calls it from two goroutines before it has begun;
// then it is safe for concurrent use.
type View interface {
	Say(line string)                      // before the run begins
	Begin(s *settings.Run, folder string) // its processes are started
	Event(now *tally.Now, e wire.Event)   // something happened
	Progress(now *tally.Now)              // it goes on
	// it has its model; missed: planned, and the run had ended before
	End(s *rundir.Summary, folder string, missed []supervisor.Fault)
	Close() // nothing more is shown
}

// File is what a view writes to: what it is decides how.
type File interface {
	io.Writer
	Fd() uintptr
}

// New picks the live panel on a terminal, plain lines elsewhere.
func New(out File, quiet bool) View {
	p := &plainView{out: out, quiet: quiet}
	if !quiet && term.IsTerminal(int(out.Fd())) {
		return &panel{plainView: p, fd: int(out.Fd())}
	}
	return p
}

// plainView prints a line for what happens, and one a second for how it goes.
type plainView struct {
	out   io.Writer
	quiet bool
	last  time.Time
	mu    sync.Mutex // guards last and the panel's lines
}

func (v *plainView) Say(line string) {
	if !v.quiet {
		fmt.Fprintln(v.out, line)
	}
}

func (v *plainView) Begin(s *settings.Run, folder string) {
	if v.quiet {
		return
	}
	job := &s.Job
	what := job.Workload
	if data := s.Params.Data; data != "" {
		what += " on " + data
	}
	fmt.Fprintf(v.out, "%s, %s, recovery %s: %d workers, %d servers, %d shards, seed %d; folder %s\n",
		what, job.Models(), job.Recovery, s.WorkersAtFirst(), job.Servers, job.Shards, job.Seed, folder)
}

// shown lists the kinds of events that people want to see as they happen.
var shown = map[string]bool{
	"fault": true, "detected": true, "suspected": true, "rollback": true, "lost": true, "serving": true,
	"trouble": true, "end": true, "left": true,
	"dropped": true, "draining": true, "drained": true, "moved": true, "scaled": true, "restored": true, "replay": true,
	"interval": true, "closing": true, "behind": true,
}

func (v *plainView) Event(now *tally.Now, e wire.Event) {
	if !v.quiet && shown[e.Kind] {
		fmt.Fprintf(v.out, "%7.2fs  clock %5d  %s\n", now.Since.Seconds(), e.Clock, e.Text)
	}
}

func (v *plainView) Progress(now *tally.Now) {
	if v.quiet || time.Since(v.last) < time.Second {
		return
	}
	v.last = time.Now()
	fmt.Fprintln(v.out, status(now))
}

// status is one line about a run: how far, how good, how fast.
func status(now *tally.Now) string {
	clock, end := now.Told.Clock, cmp.Or(now.Told.End, now.Clocks)
	line := fmt.Sprintf("%7.2fs  clock %5d of %d", now.Since.Seconds(), clock, end)
	switch {
	case now.TrainRMSE != nil:
		line += fmt.Sprintf("  rmse %.4f", *now.TrainRMSE)
	case now.TrainLoss != nil:
		line += fmt.Sprintf("  loss %.4f", *now.TrainLoss)
	}
	if now.TestAccuracy != nil {
		line += fmt.Sprintf("  test accuracy %.4f", *now.TestAccuracy)
	}
	if now.TestRMSE != nil {
		line += fmt.Sprintf("  test rmse %.4f", *now.TestRMSE)
	}
	if now.ClocksPerSecond != nil {
		line += "  " + clocksPerSecond(*now.ClocksPerSecond)
	}
	line += fmt.Sprintf("  %.1f MB/s", now.MBPerSecond)
	if now.OutageClocks > 0 {
		line += fmt.Sprintf("  %d clocks in outages", now.OutageClocks)
	}
	if speed := now.ClocksPerSecond; speed != nil {
		if left := float64(end-clock) / *speed; left > 0 && left < mostLeft {
			line += fmt.Sprintf("  %s left", time.Duration(left*float64(time.Second)).Round(time.Second))
		}
	}
	return line
}

// mostLeft is the longest time left that is told, in seconds: a hundred days.
const mostLeft = 100 * 86400

// clocksPerSecond says a speed; a slow one with more digits.
func clocksPerSecond(v float64) string {
	digits := 0
	if v < 10 {
		digits = 1
	}
	if v < 1 {
		digits = 2
	}
	return fmt.Sprintf("%.*f clocks/s", digits, v)
}

// kept names the folders in which what a strategy goes on from is kept, with a log of the
// run's own or one elsewhere.
func kept(r perdure.Recovery, ownLog bool) string {
	switch {
	case recovery.Of(r).Traits().Logged() && ownLog:
		return ", log/, snapshots/"
	case recovery.Of(r).Traits().Logged():
		return ", snapshots/"
	case recovery.Of(r).Traits().Keeps():
		return ", checkpoint/"
	}
	return ""
}

func (v *plainView) End(s *rundir.Summary, folder string, missed []supervisor.Fault) {
	fmt.Fprintln(v.out)
	result{Summary: *s, dir: folder, missed: missed, brief: v.quiet}.print(v.out)
}

// timeLine says what the workers' time went to.
func timeLine(s *rundir.TimeSplit) string {
	if s == nil {
		return "not known"
	}
	return fmt.Sprintf("compute %.0f %%, waiting for staleness %.0f %%, communication %.0f %%", 100*s.Compute,
		100*s.Staleness, 100*s.Communication)
}

func (v *plainView) Close() {}

// panel is a block of lines at the bottom of a terminal, drawn anew in place;
// events scroll by above it.
type panel struct {
	*plainView
	fd    int
	lines int // of the panel as it stands
}

// redraw is the least time between two drawings of the panel.
const redraw = 100 * time.Millisecond

func (v *panel) Event(now *tally.Now, e wire.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.plainView.Event(now, e)
	v.draw(now)
}

func (v *panel) Progress(now *tally.Now) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.last) < redraw {
		return
	}
	v.last = time.Now()
	v.erase()
	v.draw(now)
}

func (v *panel) End(s *rundir.Summary, folder string, missed []supervisor.Fault) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.plainView.End(s, folder, missed)
}

func (v *panel) Close() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
}

func (v *panel) erase() {
	if v.lines > 0 {
		fmt.Fprintf(v.out, "\r\x1b[%dA\x1b[J", v.lines) // the terminal may have shown ^C
		v.lines = 0
	}
}

// Overwrite begins a line: on a terminal over the ^C that it shows.
func Overwrite(out *os.File) string {
	if term.IsTerminal(int(out.Fd())) {
		return "\r"
	}
	return ""
}

func (v *panel) draw(now *tally.Now) {
	width, _, err := term.GetSize(v.fd)
	if err != nil || width < 20 {
		width = 80
	}
	p := &now.Told
	lines := []string{
		strings.Repeat("─", width-1),
		bar(p.Clock, max(p.End, 1), width-1),
		strings.TrimSpace(status(now)),
		alive(p.Places),
		"last: " + now.LastEvent,
	}
	for _, l := range lines {
		if r := []rune(l); len(r) > width-1 {
			l = string(r[:width-2]) + "…"
		}
		fmt.Fprintln(v.out, l)
	}
	v.lines = len(lines)
}

// bar draws how far the job is.
func bar(clock, end perdure.Clock, width int) string {
	full := int(int64(width) * int64(min(clock, end)) / int64(end))
	return strings.Repeat("█", full) + strings.Repeat("░", width-full)
}

// alive shows which processes are there: a dot each, a cross for the dead.
func alive(places []wire.PlaceProgress) string {
	signs := map[string]string{"alive": "●", "dead": "✗", "silent": "◌", "waiting": "○"}
	var servers, workers strings.Builder
	for _, p := range places {
		b := &workers
		if p.Role == wire.RoleServer {
			b = &servers
		}
		b.WriteString(signs[p.State])
	}
	return "servers " + servers.String() + "  workers " + workers.String()
}
