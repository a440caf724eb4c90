package jobs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/registry"
)

// This file has what a job's coordinators do in the registry.

// awaitPause is how often a registry is tried that is away.
const awaitPause = 200 * time.Millisecond

// Await finds a job, and waits for a registry that is away, which may be started later. Waiting is told why it waits
// whenever the reason is another one.
func (r *Registry) Await(ctx context.Context, name string, waiting func(error)) (*Job, error) {
	told := ""
	for {
		j, err := r.Find(ctx, name)
		if !errors.Is(err, registry.ErrAway) {
			return j, err
		}
		if err.Error() != told {
			told = err.Error()
			waiting(err)
		}
		select {
		case <-time.After(awaitPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// Leader is a coordinator's place at a job: as a registry, and beside it what is told of the job and wanted of it.
type Leader struct {
	registry.Post

	in  *Registry
	job *Job

	mu sync.Mutex // guards what follows
	// told is what was published last; it is what was there, until then.
	told State
}

// Lead prepares to lead a job. Who has acquired the lease calls Arrive.
func (r *Registry) Lead(ctx context.Context, j *Job) (*Leader, error) {
	p, err := r.catalog.Open(ctx, j.Name)
	if err != nil {
		return nil, r.missing(j.Name, err)
	}
	return &Leader{Post: p, in: r, job: j}, nil
}

// There returns the job as it is now, and an error if it is not there any more.
func (l *Leader) There(ctx context.Context) (*Job, error) {
	now, err := l.in.Find(ctx, l.job.Name)
	if err == nil && now.ID == l.job.ID {
		return now, nil
	}
	if err == nil || errors.Is(err, registry.ErrNoJob) {
		err = fmt.Errorf("%w: job %s, of id %s, is not in %s any more: somebody has removed it", perdure.ErrUsage,
			l.job.Name, l.job.ID, l.in)
	}
	return nil, err
}

// Arrive is called with the lease, before anything is done for the job. It returns the job as it is: one that has
// ended needs no leader. What a former leader had no time to publish is published.
func (l *Leader) Arrive(ctx context.Context) (*Job, error) {
	j, err := l.There(ctx)
	if err != nil {
		return nil, err
	}
	l.told = State{ID: j.ID, End: j.Clocks}
	if j.State != nil {
		l.told = *j.State
	}
	if l.told.Phase.Ended() {
		return j, nil
	}
	began, err := l.conclude(ctx, "", 0)
	if err == nil && !began && j.Stops() {
		err = l.Tell(ctx, func(s *State) {
			s.Phase, s.Why = Stopped, "stopped before anybody led it"
		})
	}
	if l.told.Phase != "" {
		told := l.told
		j.State = &told
	}
	return j, err
}

// Tell publishes what has changed of the job's state, if anything has.
func (l *Leader) Tell(ctx context.Context, change func(s *State)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.told
	change(&now)
	if now == l.told {
		return nil
	}
	now.ID, now.At = l.job.ID, l.in.now().UTC().Truncate(time.Millisecond)
	sealed, err := seal(stateKind, now)
	if err == nil {
		err = l.Publish(ctx, sealed)
	}
	if err == nil {
		l.told = now
	}
	return err
}

// Told is what was published last.
func (l *Leader) Told() State {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.told
}

// Wanted returns the wish that the job ends; nil: nobody has it.
func (l *Leader) Wanted(ctx context.Context) (*Wish, error) {
	sealed, err := l.Wish(ctx)
	if err != nil || sealed == nil {
		return nil, err
	}
	w := &Wish{}
	if err := open(wishKind, sealed, w); err != nil {
		return nil, fmt.Errorf("the wish of job %s: %w", l.job.Name, err)
	}
	if w.ID != l.job.ID || w.Want != stop {
		return nil, nil
	}
	return w, nil
}

// Conclude publishes how the job has ended, as far as it has: its facts say so, or stopped does, which is why it was
// stopped, and at which clock.
func (l *Leader) Conclude(ctx context.Context, stopped string, at perdure.Clock) error {
	_, err := l.conclude(ctx, stopped, at)
	return err
}

func (l *Leader) conclude(ctx context.Context, stopped string, at perdure.Clock) (began bool, err error) {
	end, began, err := ending(ctx, l.Post)
	if err != nil {
		return began, err
	}
	return began, l.Tell(ctx, func(s *State) {
		switch {
		case end.Phase != "":
			s.Phase, s.Why = end.Phase, end.Why
			if end.End > 0 && end.Phase == Done {
				s.Clock, s.End = end.End, end.End
			}
		case stopped != "":
			s.Phase, s.Why, s.Clock = Stopped, stopped, at
		}
	})
}

// ending is what the facts of a job say of its end: they are the truth, also where nobody has had the time to publish
// it. began: there are any.
func ending(ctx context.Context, from registry.Registry) (end State, began bool, err error) {
	doc, revision, err := from.Load(ctx)
	if err != nil || revision == 0 {
		return end, false, err
	}
	var f membership.Facts
	if err := json.Unmarshal(doc, &f); err != nil {
		return end, true, fmt.Errorf("facts in the registry: %w", err)
	}
	end.End = f.View.End
	switch {
	case f.Failed != "":
		end.Phase, end.Why = Failed, f.Failed
	case f.View.Done:
		end.Phase = Done
	}
	return end, true, nil
}
