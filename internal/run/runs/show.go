package runs

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
)

// showResult is a run for programs: its line, its settings and its result.
type showResult struct {
	pricedLine
	Last     string          `json:"last_event"`
	Settings any             `json:"settings"`
	Summary  *rundir.Summary `json:"summary"`
}

// Show prints a run as a page.
func (r *Run) Show(out io.Writer, asJSON bool) error {
	if r.State == Damaged && r.Settings.Job.ID == "" {
		return fmt.Errorf("%s: %w", r.Folder, r.Problem)
	}
	if asJSON {
		return humanize.JSON(out, showResult{pricedLine{r.Line(), r.Cost(r.Prices)}, r.Last, &r.Settings, r.Summary})
	}
	if r.Summary != nil {
		terminal.PrintResult(out, r.Folder, r.Summary, r.failedProcesses())
	} else {
		job := &r.Settings.Job
		fmt.Fprintf(out, "%s %s: %s, %s, recovery %s: %d workers, %d servers, %d shards, seed %d\n", r.Folder,
			r.outcomeText(), job.Workload, job.Consistency, job.Recovery, job.Slots, job.Servers, job.Shards, job.Seed)
	}
	for _, row := range r.settingRows() {
		fmt.Fprintf(out, "  %-16s %s\n", row[0], row[1])
	}
	if err := r.printFailures(out); err != nil {
		return err
	}
	if bill := r.Cost(r.Prices); bill != nil {
		if err := bill.Print(out, "  ", r.Prices.Source); err != nil {
			return err
		}
	}
	for _, line := range r.curves() {
		fmt.Fprintln(out, "  "+line)
	}
	if r.Problem != nil {
		fmt.Fprintf(out, "  %-16s %v\n", "unreadable", r.Problem)
	}
	return nil
}

// outcomeText describes a run without a result, with the next command.
func (r *Run) outcomeText() string {
	at := fmt.Sprintf("at clock %d%s", r.Clock, settings.OfClocks(r.Settings.Job.Clocks))
	switch r.State {
	case Running:
		return "is running, " + at + " (see perdure status --run " + r.Folder + ")"
	case Stopped:
		return "was stopped " + at // the last event says how to continue it
	case Detached:
		return "has no coordinator, last " + at + ", and the job may still run on its hosts"
	case Failed:
		return "failed " + at
	case Killed:
		return "ended without a result " + at + ": the command that ran it was killed, and its processes ended with it"
	}
	return "is damaged"
}

// settingRows returns the settings that are worth showing and not part of the result.
func (r *Run) settingRows() (rows [][2]string) {
	row := func(name, value string) {
		if value != "" {
			rows = append(rows, [2]string{name, value})
		}
	}
	s := &r.Settings
	if !r.Began.IsZero() {
		row("began", r.Began.Local().Format(time.DateTime)+", with version "+s.Version)
	}
	if s.Params.Marked {
		row("data", s.Params.DataName())
	}
	row("faults planned", strings.Join(s.Faults, ", "))
	row("scaled", strings.Join(s.Scale, ", "))
	if s.Until.Metric != "" {
		row("until", fmt.Sprintf("%s:%g", s.Until.Metric, s.Until.Value))
	}
	if s.ComputeMs > 0 {
		row("computing", fmt.Sprintf("at least %d ms in each clock", s.ComputeMs))
	}
	row("store", s.Checkpoints.Store)
	row("resumed from", s.Resumed)
	if r.Summary == nil {
		row("last", r.Last)
	}
	if r.State == Detached {
		row("next", "start the coordinator again with the same flags; if a standby leads, use its --address")
	}
	return rows
}

// failedProcesses returns how many processes died, or ended because of an error, according to the run's events. If
// these cannot be read, it returns 0.
func (r *Run) failedProcesses() int {
	events, err := rundir.Events(r.Folder)
	if err != nil {
		return 0
	}
	n, counted := 0, map[string]bool{} // by target: its last death is counted
	for _, e := range events {
		switch {
		case e.Target == "shards":
		case e.Kind == "detected":
			left, _ := e.Details["vacated"].(bool)
			if counted[e.Target] = !left; !left {
				n++
			}
		case e.Kind == "failure": // also of a program that had left before it ended
			if !counted[e.Target] {
				n++
			}
			counted[e.Target] = false
		}
	}
	return n
}

func (r *Run) printFailures(out io.Writer) error {
	if r.Summary == nil || len(r.Summary.Failures) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "  FAULT\tOF\tAT\tCLOCK\tNOTICED\tSERVES AGAIN\tLOST\tREDONE")
	for _, f := range r.Summary.Failures {
		fmt.Fprintf(w, "  %s\t%s\t%.2f s\t%d\t%s\t%s\t%s\t%s\n", f.Kind, cmp.Or(f.Target, unknown), f.AtSeconds,
			f.AtClock, millisecondsText(f.DetectedAfterMs), millisecondsText(f.ServingAgainAfterMs),
			text(f.UpdatesLost), text(f.ClocksRedone))
	}
	return w.Flush()
}

func millisecondsText(v *float64) string {
	if v == nil {
		return unknown
	}
	return fmt.Sprintf("%.0f ms", *v)
}

// curveWidth is the number of characters of a curve.
const curveWidth = 48

// curves draws the training curves from the run's series, as far as it can be read.
func (r *Run) curves() (lines []string) {
	s, err := rundir.ReadSeries(r.Folder)
	if err != nil {
		return nil // the series is optional
	}
	for _, c := range []struct{ column, name string }{
		{"train_loss", "train loss"}, {"test_accuracy", "test accuracy"}, {"test_rmse", "test rmse"},
	} {
		values := s.Numbers(c.column)
		if len(values) < 2 {
			continue
		}
		lines = append(lines, fmt.Sprintf("%-16s %.4g %s %.4g", c.name, values[0], terminal.Curve(values, curveWidth),
			values[len(values)-1]))
	}
	return lines
}
