package jobs

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry"
)

// This file has the ends that people make.

const (
	// hears is how long a leader may take to hear that its job is to end, until it is not waited for any longer.
	hears = 10 * time.Second
	look  = 100 * time.Millisecond
)

// Look finds a job, and looks into its facts where nobody leads it: the last leader may have died before it could
// publish how the job has ended.
func (r *Registry) Look(ctx context.Context, name string) (*Job, error) {
	j, err := r.Find(ctx, name)
	if err != nil || j.Holder != "" || j.Phase().Ended() || j.State == nil {
		return j, err
	}
	p, err := r.catalog.Open(ctx, name)
	if err != nil {
		return nil, r.missing(name, err)
	}
	defer p.Close() // only read
	end, _, err := ending(ctx, p)
	if err != nil {
		return nil, err
	}
	if end.Phase != "" {
		j.State.Phase, j.State.Why = end.Phase, end.Why
	}
	return j, nil
}

// Stop has a job end, and says what came of it.
func (r *Registry) Stop(ctx context.Context, out io.Writer, name string) error {
	j, err := r.Look(ctx, name)
	if err != nil {
		return err
	}
	if phase := j.Phase(); phase.Ended() {
		return fmt.Errorf("%w: job %s is over already: it is %s", perdure.ErrRefused, name, phase)
	}
	if j.Stops() { // it stays the wish of who was first
		return r.heard(ctx, out, j)
	}
	sealed, err := seal(wishKind, Wish{ID: j.ID, Want: stop, At: r.now().UTC().Truncate(time.Second), By: r.by})
	if err == nil {
		err = r.catalog.Wish(ctx, name, j.raw, sealed)
	}
	if errors.Is(err, registry.ErrAway) {
		return fmt.Errorf("nobody has said whether it is recorded that job %s is to end; perdure job show %s says it "+
			"once the registry is there again, and to stop the job twice does no harm: %w", name, name, err)
	}
	if err != nil {
		return r.missing(name, err)
	}
	return r.heard(ctx, out, j)
}

// heard waits until a job's leader has heard that it is to end, which is recorded, and says what came of it. That the
// registry is away meanwhile changes nothing of that.
func (r *Registry) heard(ctx context.Context, out io.Writer, j *Job) error {
	ticks := time.NewTicker(look)
	defer ticks.Stop()
	until := time.Now().Add(hears)
	for {
		now, err := r.same(ctx, j)
		if err == nil {
			j = now
		}
		switch said := j.stopSaid(); {
		case ctx.Err() != nil:
			_, err := fmt.Fprintf(out, "job %s is to end: it is recorded, and who leads the job ends it\n", j.Name)
			return errors.Join(ctx.Err(), err)
		case errors.Is(err, registry.ErrNoJob):
			return err
		case err != nil && !errors.Is(err, registry.ErrAway), err != nil && time.Now().After(until):
			return fmt.Errorf("job %s is to end, and that is recorded: who leads it ends it; how it goes on nobody "+
				"can say now; ask again with perdure job show %s: %w", j.Name, j.Name, err)
		case err == nil && said != "":
			_, err := fmt.Fprintln(out, said)
			return err
		case err == nil && time.Now().After(until):
			return fmt.Errorf("job %s is to end, but its leader, %s, has not said within %v that it has heard so; "+
				"it is recorded: perdure job show %s says how it goes on", j.Name, registry.NameOf(j.Holder), hears,
				j.Name)
		}
		select {
		case <-ticks.C:
		case <-ctx.Done():
		}
	}
}

// stopSaid is what came of the wish that the job is to end; "": nothing yet.
func (j *Job) stopSaid() string {
	switch s := j.State; {
	case s != nil && s.Phase == Stopped:
		return fmt.Sprintf("job %s is over: %s", j.Name, s.Why)
	case s != nil && s.Phase.Ended():
		return fmt.Sprintf("job %s is over: it is %s", j.Name, s.Phase)
	case s != nil && s.Phase == Stopping && j.Holder != "":
		return fmt.Sprintf("job %s is stopping, at clock %d: its leader has heard it", j.Name, s.Clock)
	case j.Holder == "":
		return fmt.Sprintf("job %s is to end: it is recorded, but nobody leads the job now; the next coordinator that "+
			"comes ends it (perdure job rm --force %s removes it without one)", j.Name, j.Name)
	}
	return ""
}

// same finds a job again.
func (r *Registry) same(ctx context.Context, j *Job) (*Job, error) {
	now, err := r.Find(ctx, j.Name)
	if err == nil && now.ID != j.ID {
		err = r.missing(j.Name, registry.ErrNoJob)
	}
	return now, err
}

// Remove removes a job that has ended, with all that the registry has of it; forced also one that has not, unless
// somebody leads it.
func (r *Registry) Remove(ctx context.Context, out io.Writer, name string, forced bool) error {
	e, err := r.catalog.Find(ctx, name)
	if err != nil {
		return r.missing(name, err)
	}
	if !forced {
		j, err := r.Look(ctx, name)
		if err != nil {
			return err
		}
		if phase := j.Phase(); !phase.Ended() {
			return fmt.Errorf("%w: job %s has not ended: it is %s; end it with perdure job stop %s, or, where nobody "+
				"leads it and nobody is to, remove it with --force", perdure.ErrRefused, name, phase, name)
		}
		e.Record = j.raw
	}
	err = r.catalog.Remove(ctx, name, e.Record)
	switch {
	case errors.Is(err, registry.ErrHeld):
		return fmt.Errorf("%w: somebody leads job %s, which is not removed: %w; end it with perdure job stop %s, and "+
			"try again", perdure.ErrRefused, name, err, name)
	case err != nil:
		return r.missing(name, err)
	}
	_, err = fmt.Fprintf(out, "job %s is removed from %s; what its coordinators and hosts have in their folders, and "+
		"its store, are still there\n", name, r)
	return err
}
