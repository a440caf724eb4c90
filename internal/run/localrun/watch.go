package localrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/terminal"
)

// The supervisor's events and reports go to the tally, to the run's directory and to the view.

// displayState returns the current state of the run for the view.
func (r *Run) displayState() *terminal.State {
	return new(r.stats.State(r.job.Since(), time.Now()))
}

func (r *Run) onEvent(e wire.Event) {
	r.stats.RecordEvent(e.Text)
	details := map[string]any{"unix_ns": e.UnixNs, "updates_lost": e.UpdatesLost, "clocks_redone": e.ClocksRedone}
	if e.Output != "" {
		details["said"] = e.Output
	}
	if e.Vacated {
		details["vacated"] = true
	}
	r.checkRecord(r.dir.Event(rundir.Event{
		Seconds: r.job.Since().Seconds(), Clock: e.Clock, Kind: e.Kind, Target: e.Target, Text: e.Text,
		Details: details,
	}))
	r.live.Load().Wake()
	r.view.Event(r.displayState(), e)
}

func (r *Run) onReport(report wire.Report) {
	if r.stats.RecordReport(report, r.job.Since()) {
		r.writePoint(max(report.Clock, 0))
		r.live.Load().Wake()
	}
}

func (r *Run) onProgress(p wire.Progress) {
	now := time.Now()
	if r.stats.RecordProgress(p, now) {
		r.writePoint(r.Clock())
	}
	if r.stats.ClocksDue(now) {
		r.checkRecord(r.dir.Clocks(r.stats.Clocks(r.job.Since())))
	}
	r.live.Load().Wake()
	r.view.Progress(r.displayState())
	r.targets.update(p.Members, r.showLine)
	if p.Complete {
		r.once.Do(func() { close(r.complete) })
	}
}

// writePoint writes a row of series.csv.
func (r *Run) writePoint(clock perdure.Clock) {
	r.checkRecord(r.dir.Point(r.stats.Point(clock, r.job.Since(), r.job.Group().Usage(), time.Now())))
}

// checkRecord ends the job if a write to the run's directory has failed, since a run without a record is worthless. If
// the disk is full, the run continues and checkRecord notifies the user.
func (r *Run) checkRecord(err error) {
	if err != nil {
		r.job.End(err)
		return
	}
	waits := r.dir.DiskFull()
	r.mu.Lock()
	did := r.recordWaits
	r.recordWaits = waits
	r.mu.Unlock()
	switch {
	case waits && !did:
		r.showLine("the disk of " + r.dir.Path() + " is full: the run's record waits until there is space; free some")
	case did && !waits:
		r.showLine("there is space in " + r.dir.Path() + " again: the waiting record is written")
	}
}

// showLine shows a line of the run's parent.
func (r *Run) showLine(text string) {
	r.view.Event(r.displayState(), wire.Event{Kind: "trouble", Clock: r.Clock(), Text: text})
}

// retryWritePause is the time between two attempts to write to a full disk.
const retryWritePause = time.Second

// retryWrite writes to the run's directory or its store. While the disk is full or the store is unavailable, it
// notifies the user once and tries again.
func (r *Run) retryWrite(ctx context.Context, what string, write func() error) error {
	sent := false
	return disk.Retry{Pause: retryWritePause, Retryable: store.Retryable}.Do(ctx, func() error {
		err := write()
		if store.Retryable(err) && !sent {
			sent = true
			until := "there is space"
			if errors.Is(err, store.ErrUnavailable) {
				until = "it answers"
			}
			r.showLine(fmt.Sprintf("cannot write %s (%v); retrying until %s", what, err, until))
		}
		return err
	})
}

// Summary returns the summary of the run so far; model is nil if it is not known.
func (r *Run) Summary(model *finalModel) rundir.Summary {
	if model != nil {
		r.stats.RecordFinal(model.Eval)
	}
	r.writePoint(r.stats.Progress().End)
	return r.stats.Summary(finalValues{
		Since: r.job.Since(), Used: r.job.Group().Usage(), LogBytes: r.logUsed(), Failures: r.job.Timeline(),
		Model: model,
	})
}
