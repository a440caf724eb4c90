package localrun

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/settings"
)

// This file has how a run ends before its last clock, because somebody says so.

// ErrInterrupted is why a run ended early on a signal, ErrStopped on perdure stop.
var (
	ErrInterrupted = errors.New("interrupted")
	ErrStopped     = errors.New("stopped")
)

// logGrace is how long the process of a log of the run's own may take to close it in
// order, so that it can be seen later whether it is whole.
const logGrace = 5 * time.Second

// lastCheckpoint is how long the job may take for a last checkpoint when it is ended
// early; 0: it makes none.
func lastCheckpoint(s *settings.Run) time.Duration {
	if recovery.Of(s.Job.Recovery).Traits().Closes() {
		return s.Checkpoints.Grace
	}
	return 0
}

// heed ends the job in order when ctx ends, and at once when atOnce does.
func (r *Run) heed(ctx, atOnce context.Context) (stop func()) {
	first := context.AfterFunc(ctx, func() { r.job.Stop(ErrInterrupted) })
	second := context.AfterFunc(atOnce, func() { r.job.End(ErrInterrupted) })
	return func() {
		first()
		second()
	}
}

// stopped says how to go on, where a job has ended early on somebody's word; else it
// returns why it has ended.
func (r *Run) stopped(why error) error {
	switch {
	case errors.Is(why, supervisor.ErrStopAsked):
		why = ErrStopped
	case !errors.Is(why, ErrInterrupted):
		return why
	}
	p := r.tally.Told()
	command := "train"
	if r.s.Job.Workload == settings.OwnWorkload {
		command = "up"
	}
	place := "" // each run has its own
	if r.s.Checkpoints.Store != "" {
		place = " --store URL"
	}
	anew := fmt.Sprintf("begin again with perdure %s --from %s/run.json%s", command, r.dir.Path(), place)
	if r.s.Resumed != "" { // its run.json alone does not say what it began with
		anew = fmt.Sprintf("begin again with perdure %s %s%s", command, r.s.Again(), place)
	}
	p.Durable = max(p.Durable, r.s.Cut) // its folder has what it went on from
	at := fmt.Errorf("%w at clock %d", why, p.Clock)
	if r.s.Log != nil && p.Clock > 0 {
		return fmt.Errorf("%w; resuming goes on from what its update log has: perdure %s --resume %s%s", at, command,
			r.dir.Path(), place)
	}
	cannot, rows := recovery.Of(r.s.Job.Recovery).MayResume(), ""
	if recovery.RoundsOf(r.s.Job.Recovery).Any() {
		if p.Durable = savedRows(r.kept); !p.Closed {
			rows = ", with each row as it was last saved"
		}
	}
	switch {
	case cannot != nil:
		return fmt.Errorf("%w; %w; %s", at, cannot, anew)
	case p.Durable == 0 && (r.s.Job.Init == "" || r.s.Log != nil): // else the model that it began with is a checkpoint
		return fmt.Errorf("%w, before there was a checkpoint; there is nothing to resume: %s", at, anew)
	case p.End > 0 && p.Durable >= p.End:
		return fmt.Errorf("%w, its last, without the model; resuming starts at clock %d, and needs more clocks: "+
			"perdure %s --resume %s --clocks %d%s", at, p.Durable, command, r.dir.Path(), p.End+1, place)
	case r.s.Checkpoints.Grace > 0 && !p.Closed:
		at = fmt.Errorf("%w; no last checkpoint was made", at)
	}
	return fmt.Errorf("%w; resuming starts at clock %d%s: perdure %s --resume %s%s", at, p.Durable, rows, command,
		r.dir.Path(), place)
}

// savedRows returns the clock of the newest running checkpoint in a store; 0: there is none.
func savedRows(in store.Store) perdure.Clock {
	m, err := checkpoint.LatestRunning(in)
	if err != nil { // whoever resumes is told
		return 0
	}
	return m.Clock
}
