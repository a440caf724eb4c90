package main

import (
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
	"github.com/perdure/perdure/internal/run/rundir"
)

// view shows a run to a person while it goes on.
type view interface {
	say(line string) // before the run begins
	begin(j *localJob)
	event(j *localJob, e wire.Event)
	progress(j *localJob)
	end(j *localJob, s rundir.Summary)
	close()
}

// newView picks the live panel on a terminal, plain lines elsewhere.
func newView(out *printed, quiet bool) view {
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

func (v *plainView) say(line string) {
	if !v.quiet {
		fmt.Fprintln(v.out, line)
	}
}

func (v *plainView) begin(j *localJob) {
	if v.quiet {
		return
	}
	job := &j.s.Job
	what := job.Workload
	if data := j.s.Params.Data; data != "" {
		what += " on " + data
	}
	fmt.Fprintf(v.out, "%s, %s, recovery %s: %d workers, %d servers, %d shards, seed %d; folder %s\n",
		what, job.Models(), job.Recovery, j.s.WorkersAtFirst(), job.Servers, job.Shards, job.Seed, j.dir.Path())
}

// shown lists the kinds of events that people want to see as they happen.
var shown = map[string]bool{
	"fault": true, "detected": true, "suspected": true, "rollback": true, "lost": true, "serving": true, "trouble": true, "end": true, "left": true,
	"dropped": true, "draining": true, "drained": true, "moved": true, "scaled": true, "restored": true, "replay": true, "interval": true, "closing": true, "behind": true,
}

func (v *plainView) event(j *localJob, e wire.Event) {
	if !v.quiet && shown[e.Kind] {
		fmt.Fprintf(v.out, "%7.2fs  clock %5d  %s\n", j.job.Since().Seconds(), e.Clock, e.Text)
	}
}

func (v *plainView) progress(j *localJob) {
	if v.quiet || time.Since(v.last) < time.Second {
		return
	}
	v.last = time.Now()
	fmt.Fprintln(v.out, status(j))
}

// status is one line about a run: how far, how good, how fast.
func status(j *localJob) string {
	j.mu.Lock()
	defer j.mu.Unlock()
	p := &j.progress
	end := p.End
	if end == 0 {
		end = j.s.Job.Clocks
	}
	line := fmt.Sprintf("%7.2fs  clock %5d of %d", j.job.Since().Seconds(), p.Clock, end)
	switch {
	case j.trainRMSE != nil:
		line += fmt.Sprintf("  rmse %.4f", *j.trainRMSE)
	case j.trainLoss != nil:
		line += fmt.Sprintf("  loss %.4f", *j.trainLoss)
	}
	if j.testAcc != nil {
		line += fmt.Sprintf("  test accuracy %.4f", *j.testAcc)
	}
	if j.testRMSE != nil {
		line += fmt.Sprintf("  test rmse %.4f", *j.testRMSE)
	}
	speed, known := j.clocksPerSecond()
	if known {
		line += "  " + clocksPerSecond(speed)
	}
	line += fmt.Sprintf("  %.1f MB/s", j.mbRate)
	if w := j.totals(); w.OutageClocks > 0 {
		line += fmt.Sprintf("  %d clocks in outages", w.OutageClocks)
	}
	if left := float64(end-p.Clock) / speed; known && left > 0 && left < mostLeft {
		line += fmt.Sprintf("  %s left", time.Duration(left*float64(time.Second)).Round(time.Second))
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
	case recovery.Of(r).Traits().Saves():
		return ", checkpoint/"
	}
	return ""
}

func (v *plainView) end(j *localJob, s rundir.Summary) {
	fmt.Fprintln(v.out)
	result{Summary: s, dir: j.dir.Path(), missed: j.job.Pending(), brief: v.quiet}.print(v.out)
}

// timeLine says what the workers' time went to.
func timeLine(s *rundir.TimeSplit) string {
	if s == nil {
		return "not known"
	}
	return fmt.Sprintf("compute %.0f %%, waiting for staleness %.0f %%, communication %.0f %%", 100*s.Compute, 100*s.Staleness, 100*s.Communication)
}

func (v *plainView) close() {}

// panel is a block of lines at the bottom of a terminal, drawn anew in place;
// events scroll by above it.
type panel struct {
	*plainView
	fd    int
	lines int // of the panel as it stands
}

// redraw is the least time between two drawings of the panel.
const redraw = 100 * time.Millisecond

func (v *panel) event(j *localJob, e wire.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.plainView.event(j, e)
	v.draw(j)
}

func (v *panel) progress(j *localJob) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if time.Since(v.last) < redraw {
		return
	}
	v.last = time.Now()
	v.erase()
	v.draw(j)
}

func (v *panel) end(j *localJob, s rundir.Summary) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.erase()
	v.plainView.end(j, s)
}

func (v *panel) close() {
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

// overwrite begins a line: on a terminal over the ^C that it shows.
func overwrite(out *os.File) string {
	if term.IsTerminal(int(out.Fd())) {
		return "\r"
	}
	return ""
}

func (v *panel) draw(j *localJob) {
	width, _, err := term.GetSize(v.fd)
	if err != nil || width < 20 {
		width = 80
	}
	j.mu.Lock()
	p, last := j.progress, j.lastEvent
	j.mu.Unlock()
	lines := []string{
		strings.Repeat("─", width-1),
		bar(p.Clock, max(p.End, 1), width-1),
		strings.TrimSpace(status(j)),
		alive(p.Places),
		"last: " + last,
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

// alive says who is there: a dot each, a cross for the dead.
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
