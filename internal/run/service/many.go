package service

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/registry"
	"github.com/perdure/perdure/internal/run/jobs"
	"github.com/perdure/perdure/internal/run/localrun"
)

// This file has a job in a registry of many: its leader says there how the job is, and hears what people want of it.

// Place is a job in a registry of many.
type Place struct {
	Registry *jobs.Registry
	Job      *jobs.Job
}

// String is where the job is, as messages have it.
func (p *Place) String() string { return fmt.Sprintf("%s --name %s", p.Registry, p.Job.Name) }

const (
	// hearEvery is how often a leader looks for what people want, so it hears of it within 2 s.
	hearEvery = time.Second
	// tellEvery is how often a leader says how far the job is, at most: each time is a write in etcd.
	tellEvery = 5 * time.Second
	// lastWord is how long a leader may take to record how the job has ended.
	lastWord = 10 * time.Second
)

// lent is a registry that outlives who uses it: the job's end is recorded when the coordinator has ended.
type lent struct{ registry.Registry }

func (lent) Close() error { return nil }

type lentLease struct{ registry.Lease }

func (lentLease) Release() error { return nil }

// arrive looks, with the lease, what is to be done for the job. over: nothing.
func (c *Coordinator) arrive(ctx context.Context, leader *jobs.Leader) (over bool, err error) {
	if leader == nil {
		return false, nil
	}
	j, err := leader.Arrive(ctx)
	if err != nil || !j.Phase().Ended() {
		return false, err
	}
	if j.Phase() == jobs.Failed {
		return true, fmt.Errorf("%w: %s", perdure.ErrFailed, j.State.Why)
	}
	text := fmt.Sprintf("job %s is over: %s", j.Name, cmp.Or(j.State.Why, "it is "+string(j.Phase())))
	if j.State.Folder != "" {
		text += "; what it has made is with the coordinator that led it last, in " + j.State.Folder + " there"
	}
	c.Log.Info(text)
	return true, nil
}

// tend says how the job is and hears what people want, until ctx ends; then wait returns. The first is done before
// it returns.
func (c *Coordinator) tend(ctx context.Context, addr string, r *localrun.Attendant) (wait func()) {
	if c.leader == nil {
		return func() {}
	}
	t := &tending{Coordinator: c, addr: addr, r: r}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(hearEvery)
		defer tick.Stop()
		for {
			t.hear(ctx)
			t.tell(ctx)
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
		}
	}()
	return func() {
		<-ended
		c.reached = r.Told().Clock
	}
}

// tending is what one leader does beside leading. It belongs to one goroutine.
type tending struct {
	*Coordinator
	addr    string
	r       *localrun.Attendant
	stops   bool
	told    time.Time // when something was published last
	trouble string    // that was logged last
}

// hear ends the job, once, if somebody wants it.
func (t *tending) hear(ctx context.Context) {
	if t.stops {
		return
	}
	stop, err := t.leader.Wanted(ctx)
	t.complain(ctx, err)
	if stop != nil {
		t.Log.Info("the job is to end: somebody has said so in the registry", "by", stop.By, "at", stop.At)
		t.stops = true
		t.r.Stop()
	}
}

// tell publishes how the job is: how far it is now and then, and all else at once.
func (t *tending) tell(ctx context.Context) {
	p := t.r.Told()
	err := t.leader.Tell(ctx, func(s *jobs.State) {
		before := *s
		s.Address, s.Folder, s.Phase = t.addr, t.Dir, jobs.Running
		if t.stops {
			s.Phase = jobs.Stopping
		}
		if p.Revision > 0 && (*s != before || time.Since(t.told) >= tellEvery) {
			s.Clock, s.End = p.Clock, p.End
		}
		if *s != before {
			t.told = time.Now()
		}
	})
	t.complain(ctx, err)
}

// complain logs what keeps it from hearing or telling, when that is something else than before. Who has lost its lease
// hears of it otherwise.
func (t *tending) complain(ctx context.Context, err error) {
	if err == nil || ctx.Err() != nil || errors.Is(err, registry.ErrLost) || err.Error() == t.trouble {
		return
	}
	t.trouble = err.Error()
	t.Log.Warn("the registry is not told how the job is, or not asked what people want", "err", err)
}

// leave records how the job has ended, if it has, and gives its lease back. Where that fails the next coordinator finds
// it in the facts, or is told again that the job is to end.
func (c *Coordinator) leave(ctx context.Context) {
	if c.leader == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWord)
	defer cancel()
	recorded := c.leader.Conclude(ctx, c.stopped, c.reached)
	if recorded != nil && !errors.Is(recorded, registry.ErrLost) {
		c.Log.Warn("how the job has ended is not recorded; the next coordinator does it", "err", recorded)
	}
	_ = c.leader.Close() // the lease ends with the process anyway
	c.leader = nil
}
