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

// This file implements ending a run before its last clock, on request.

// ErrInterrupted ends a run early on a signal, and ErrStopped on perdure stop.
var (
	ErrInterrupted = errors.New("interrupted")
	ErrStopped     = errors.New("stopped")
)

// logGrace is how long the process of the run's own log may take to close it gracefully. A log that was closed so can
// later be verified to be complete.
const logGrace = 5 * time.Second

// lastCheckpoint returns how long the job may take for a final checkpoint when it is ended early; 0 means that it makes
// none.
func lastCheckpoint(s *settings.Run) time.Duration {
	if recovery.Of(s.Job.Recovery).Traits().SavesAtEnd() {
		return s.Checkpoints.Grace
	}
	return 0
}

// endOnSignal ends the job gracefully when ctx ends, and immediately when atOnce ends.
func (r *Run) endOnSignal(ctx, atOnce context.Context) (stop func()) {
	first := context.AfterFunc(ctx, func() { r.job.Stop(ErrInterrupted) })
	second := context.AfterFunc(atOnce, func() { r.job.End(ErrInterrupted) })
	return func() {
		first()
		second()
	}
}

// stopped returns an error that says how to continue a job whose early end was requested. Otherwise it returns why the
// job ended.
func (r *Run) stopped(why error) error {
	switch {
	case errors.Is(why, supervisor.ErrStopAsked):
		why = ErrStopped
	case !errors.Is(why, ErrInterrupted):
		return why
	}
	p := r.stats.Progress()
	command := "train"
	if r.s.Job.Workload == settings.OwnWorkload {
		command = "up"
	}
	if r.ownPrograms {
		command = "up --exec COMMAND"
	}
	place := "" // each run needs its own
	if r.s.Checkpoints.Store != "" {
		place = " --store URL"
	}
	anew := fmt.Sprintf("start over with perdure %s --from %s/run.json%s", command, r.dir.Path(), place)
	if r.s.Resumed != "" { // its run.json alone does not contain the initial state
		anew = fmt.Sprintf("start over with perdure %s %s%s", command, r.s.RestartFlag(), place)
	}
	p.Durable = max(p.Durable, r.s.Cut) // its directory contains the checkpoint that it resumed from
	at := fmt.Errorf("%w at clock %d", why, p.Clock)
	if r.s.Log != nil && p.Clock > 0 {
		return fmt.Errorf("%w; resuming continues from the updates in its log: perdure %s --resume %s%s", at, command,
			r.dir.Path(), place)
	}
	cannot, rows := recovery.Of(r.s.Job.Recovery).CheckResume(), ""
	if recovery.RoundsOf(r.s.Job.Recovery).Any() {
		if p.Durable = savedRows(r.store); !p.Closed {
			rows = ", with each row as it was last saved"
		}
	}
	switch {
	case cannot != nil:
		return fmt.Errorf("%w; %w; %s", at, cannot, anew)
	// otherwise the model that the run started with is a checkpoint
	case p.Durable == 0 && (r.s.Job.Init == "" || r.s.Log != nil):
		return fmt.Errorf("%w, before the first checkpoint, so there is nothing to resume: %s", at, anew)
	case p.End > 0 && p.Durable >= p.End:
		return fmt.Errorf("%w, its last clock, before it wrote the model; resuming starts at clock %d and needs more "+
			"clocks: perdure %s --resume %s --clocks %d%s", at, p.Durable, command, r.dir.Path(), p.End+1, place)
	case r.s.Checkpoints.Grace > 0 && !p.Closed:
		at = fmt.Errorf("%w; no final checkpoint was made", at)
	}
	if r.ownPrograms {
		place += fmt.Sprintf(", or python -m perdure launch --resume %s with the program", r.dir.Path())
	}
	return fmt.Errorf("%w; resuming starts at clock %d%s: perdure %s --resume %s%s", at, p.Durable, rows, command,
		r.dir.Path(), place)
}

// recordStop records the end of a job that was stopped on request, and returns err.
func recordStop(j *supervisor.Job, err error) error {
	if errors.Is(err, ErrStopped) || errors.Is(err, ErrInterrupted) {
		j.Emit("stopped", "", time.Now(), err.Error())
	}
	return err
}

// savedRows returns the clock of the newest running checkpoint in a store, or 0 without one.
func savedRows(in store.Store) perdure.Clock {
	m, err := checkpoint.LatestRunning(in)
	if err != nil { // resuming reports the error
		return 0
	}
	return m.Clock
}
