package localrun

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
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
	command, resume := commandOf(&r.s, r.ownPrograms), "--resume "+r.dir.Path()
	start := "--from " + r.dir.Path() + "/run.json"
	if r.s.Resumed != "" { // its run.json alone does not contain the initial state
		start = r.s.RestartFlag()
	}
	if r.s.Checkpoints.Store != "" { // each run needs its own
		start, resume = start+" --store URL", resume+" --store URL"
	}
	p.Durable = max(p.Durable, r.s.Cut) // its directory contains the checkpoint that it resumed from
	at := fmt.Errorf("%w at clock %d", why, p.Clock)
	if r.s.Log != nil && p.Clock > 0 {
		return fmt.Errorf("%w; resuming continues from the updates in its log: %s", at,
			command(resume))
	}
	cannot, rows := recovery.Of(r.s.Job.Recovery).CheckResume(), ""
	if recovery.RoundsOf(r.s.Job.Recovery).Any() {
		if p.Durable = savedRows(r.store); !p.Closed {
			rows = ", with each row as it was last saved"
		}
	}
	switch {
	case cannot != nil:
		return fmt.Errorf("%w; %w; start over with %s", at, cannot, command(start))
	// otherwise the model that the run started with is a checkpoint
	case p.Durable == 0 && (r.s.Job.Init == "" || r.s.Log != nil):
		return fmt.Errorf("%w, before the first checkpoint, so there is nothing to resume: start over with %s", at,
			command(start))
	case p.End > 0 && p.Durable >= p.End:
		return fmt.Errorf("%w, its last clock, before it wrote the model; resuming starts at clock %d and needs more "+
			"clocks: %s", at, p.Durable, command(resume, fmt.Sprintf("--clocks %d", p.End+1)))
	case r.s.Checkpoints.Grace > 0 && !p.Closed:
		at = fmt.Errorf("%w; no final checkpoint was made", at)
	}
	return fmt.Errorf("%w; resuming starts at clock %d%s: %s", at, p.Durable, rows,
		command(resume))
}

// envLaunch has the program of python -m perdure launch, with the flags that are not those of perdure up.
const envLaunch = "PERDURE_LAUNCH"

// commandOf returns a function that returns the command which continues or repeats a run with the given flags.
func commandOf(s *settings.Run, ownPrograms bool) func(flags ...string) string {
	launched := os.Getenv(envLaunch)
	command := "perdure train"
	switch {
	case ownPrograms && launched != "":
		return func(flags ...string) string {
			return strings.Join([]string{"python -m perdure launch", strings.Join(flags, " "), launched}, " ")
		}
	case ownPrograms:
		command = "perdure up --exec COMMAND"
	case s.Job.Workload == settings.OwnWorkload:
		command = "perdure up"
	}
	return func(flags ...string) string { return command + " " + strings.Join(flags, " ") }
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
