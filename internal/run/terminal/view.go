// Package terminal shows a run in the terminal: a running one as plain lines or as a panel at the bottom (View), its
// status (PrintStatus), and its result (PrintResult). It only prints the values that it is given.
package terminal

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
)

// State is the state of a job at a moment, as it is shown. Unknown values are nil.
type State struct {
	Since     time.Duration // time since the first clock started
	Progress  wire.Progress
	Clocks    perdure.Clock // number of clocks of the job
	LastEvent string

	TrainLoss, TrainRMSE   *float64
	TestAccuracy, TestRMSE *float64
	ClocksPerSecond        *float64
	MBPerSecond            float64 // pushed and pulled
	OutageClocks           int64   // done while a shard was unavailable
}

// View shows a running run. Until Start returns, it must be used by one goroutine; afterwards it is safe for concurrent
// use.
type View interface {
	Message(line string)               // shows a line before the run begins
	Start(s *settings.Run, dir string) // the processes have been started
	Event(now *State, e wire.Event)    // shows an event
	Progress(now *State)               // shows progress
	// the model is complete; missed holds planned faults for which the run ended too early
	End(s *rundir.Summary, dir string, missed []supervisor.Fault)
	Close() // nothing more is shown
}

// File is the output of a view, which depends on whether it is a terminal.
type File interface {
	io.Writer
	Fd() uintptr
}

// New returns the live panel on a terminal, and plain lines elsewhere.
func New(out File) View {
	p := &plainView{out: out}
	if os.Getenv("TERM") == "dumb" || !term.IsTerminal(int(out.Fd())) {
		return p
	}
	return &panel{plainView: p, fd: int(out.Fd()), colour: os.Getenv("NO_COLOR") == ""}
}

// Overwrite returns the start of a line, which on a terminal overwrites the ^C that it shows.
func Overwrite(out *os.File) string {
	if term.IsTerminal(int(out.Fd())) {
		return "\r"
	}
	return ""
}

// plainView prints a line for each event, and one per second about the progress until the job is complete.
type plainView struct {
	out      io.Writer
	last     time.Time
	complete bool       // the last line about the progress was of a complete job
	mu       sync.Mutex // guards last, complete and the panel's lines
}

func (v *plainView) Message(line string) {
	fmt.Fprintln(v.out, line)
}

func (v *plainView) Start(s *settings.Run, dir string) {
	job := &s.Job
	what := job.Workload
	if s.Params.Data != "" {
		what += " on " + s.Params.DataName()
	}
	fmt.Fprintf(v.out, "%s, %s, recovery %s: %d workers, %d servers, %d shards, seed %d; folder %s\n",
		what, job.Models(), job.Recovery, s.InitialWorkers(), job.Servers, job.Shards, job.Seed, dir)
}

// shownEvents lists the kinds of events that are shown as they happen.
var shownEvents = map[string]bool{
	"fault": true, "detected": true, "suspected": true, "rollback": true, "lost": true, "serving": true,
	"trouble": true, "end": true, "continue": true, "left": true, "untrained": true, "warning": true,
	"dropped": true, "draining": true, "drained": true, "moved": true, "scaled": true, "restored": true, "replay": true,
	"copying": true, "interval": true, "closing": true, "behind": true, "taken": true, "failure": true, "missing": true,
	"resumed": true,
}

func (v *plainView) Event(now *State, e wire.Event) {
	if shownEvents[e.Kind] {
		fmt.Fprintf(v.out, "%7.2fs  clock %5d  %s\n", now.Since.Seconds(), e.Clock, e.Text)
		for line := range strings.Lines(e.Output) {
			fmt.Fprintf(v.out, "    | %s\n", strings.TrimRight(line, "\n"))
		}
	}
}

func (v *plainView) Progress(now *State) {
	if time.Since(v.last) < time.Second || v.complete && now.Progress.Complete {
		return
	}
	v.last, v.complete = time.Now(), now.Progress.Complete
	fmt.Fprintln(v.out, status(now))
}

// status returns one line about a run: its progress, quality and speed.
func status(now *State) string {
	line := fmt.Sprintf("%7.2fs  %s", now.Since.Seconds(), progressText(now))
	for _, part := range append(quality(now), speed(now)...) {
		line += "  " + part
	}
	return line
}

// progressText returns a run's progress.
func progressText(now *State) string {
	return fmt.Sprintf("clock %5d%s", now.Progress.Clock, settings.OfClocks(cmp.Or(now.Progress.End, now.Clocks)))
}

// quality returns the known measures of the model.
func quality(now *State) (parts []string) {
	add := func(format string, v *float64) {
		if v != nil {
			parts = append(parts, fmt.Sprintf(format, *v))
		}
	}
	if now.TrainRMSE != nil {
		add("rmse %.4f", now.TrainRMSE)
	} else {
		add("loss %.4f", now.TrainLoss)
	}
	add("test accuracy %.4f", now.TestAccuracy)
	add("test rmse %.4f", now.TestRMSE)
	return parts
}

// speed returns a run's speed and remaining time, as far as they are known.
func speed(now *State) (parts []string) {
	if now.ClocksPerSecond != nil {
		parts = append(parts, clocksPerSecond(*now.ClocksPerSecond))
	}
	parts = append(parts, fmt.Sprintf("%.1f MB/s", now.MBPerSecond))
	if now.OutageClocks > 0 {
		parts = append(parts, fmt.Sprintf("%d clocks in outages", now.OutageClocks))
	}
	if left := remainingTime(now); left != "" {
		parts = append(parts, left)
	}
	return parts
}

// remainingTime returns the remaining time of a run, or "" if it is unknown.
func remainingTime(now *State) string {
	if now.ClocksPerSecond == nil {
		return ""
	}
	left := float64(cmp.Or(now.Progress.End, now.Clocks)-now.Progress.Clock) / *now.ClocksPerSecond
	if left <= 0 || left >= maxLeft {
		return ""
	}
	return time.Duration(left*float64(time.Second)).Round(time.Second).String() + " left"
}

// maxLeft is the longest remaining time that is shown, in seconds: a hundred days.
const maxLeft = 100 * 86400

// clocksPerSecond formats a speed, with more digits if it is low.
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

// resumableDirs names the directories with data from which the strategy resumes a run, depending on whether the run has
// its own log.
func resumableDirs(r perdure.Recovery, ownLog bool) string {
	switch {
	case recovery.Of(r).Traits().UsesLog() && ownLog:
		return ", log/, snapshots/"
	case recovery.Of(r).Traits().UsesLog():
		return ", snapshots/"
	case recovery.Of(r).Traits().SavesAny():
		return ", checkpoint/"
	}
	return ""
}

func (v *plainView) End(s *rundir.Summary, folder string, missed []supervisor.Fault) {
	fmt.Fprintln(v.out)
	result{Summary: *s, dir: folder, missed: missed}.print(v.out)
}

// timeLine describes how the workers spent their time.
func timeLine(s *rundir.TimeSplit) string {
	if s == nil {
		return "not known"
	}
	return fmt.Sprintf("compute %.0f %%, waiting for staleness %.0f %%, communication %.0f %%", 100*s.Compute,
		100*s.Staleness, 100*s.Communication)
}

func (v *plainView) Close() {}
