package locate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
)

// Remaining is the part of a drain that is not complete.
type Remaining struct {
	Servers []string // that hold replicas, or have not ended
	Shards  int      // held by these servers
	Bytes   int64    // of their rows, as far as reported
	Workers []string // that have not left
	Lost    []string // servers that ended before other servers had all of their replicas
}

// Done reports whether the drain is complete.
func (r *Remaining) Done() bool { return len(r.Servers)+len(r.Workers) == 0 }

func (r *Remaining) String() string {
	var parts []string
	if len(r.Servers) > 0 {
		parts = append(parts, fmt.Sprintf("%s: %d shards, %.1f MB", strings.Join(r.Servers, ", "), r.Shards,
			float64(r.Bytes)/1e6))
	}
	if len(r.Workers) > 0 {
		parts = append(parts, strings.Join(r.Workers, ", "))
	}
	return strings.Join(parts, "; ")
}

// RemainingDrain returns the incomplete part of a drain according to a status.
func RemainingDrain(s *control.Status, d *control.DrainResult) (r Remaining) {
	for _, at := range d.Places {
		i := slices.IndexFunc(s.Processes, func(p control.Process) bool {
			return p.Role == at.Role && p.Index == at.Index
		})
		if i < 0 {
			continue
		}
		p, name := &s.Processes[i], fmt.Sprintf("%s:%d", at.Role, at.Index)
		here := p.Incarnation == at.Incarnation && p.State != control.ProcessDead && p.State != control.ProcessLeft &&
			p.State != control.ProcessStarting
		switch {
		case at.Role == string(wire.RoleWorker):
			if here {
				r.Workers = append(r.Workers, name)
			}
		case p.Drained >= at.Incarnation:
		case here:
			r.Servers = append(r.Servers, name)
			r.Shards += p.Shards
			r.Bytes += p.Bytes
		default:
			r.Lost = append(r.Lost, name)
		}
	}
	return r
}

const (
	drainPollInterval = 100 * time.Millisecond
	// coordinatorTimeout is how long the coordinator may be unavailable during a drain: the next coordinator continues
	// it.
	coordinatorTimeout = 30 * time.Second
	// maxNoticeDelay is how long after a notice its processes may still appear in the status.
	maxNoticeDelay = 10 * time.Second
)

// AwaitDrained waits until a drain is complete, and calls tell whenever the remaining part changes. The error names
// replicas that were not handed over.
func AwaitDrained(ctx context.Context, client control.Backend, d *control.DrainResult, notice time.Duration,
	tell func(*Remaining),
) error {
	began, received := time.Now(), time.Now()
	var last Remaining
	for {
		s, err := client.Status(ctx)
		switch {
		case errors.Is(err, control.ErrUnreachable) && time.Since(received) < coordinatorTimeout:
		case err != nil:
			return err
		case s.RegistryAway != nil: // an end during this time is neither recorded nor decided
			received = time.Now()
		default:
			received = time.Now()
			r := RemainingDrain(&s, d)
			if r.Done() {
				return r.end(&last, &s)
			}
			if r.String() != last.String() {
				tell(&r)
			}
			if last = r; s.State == control.StateDone {
				return fmt.Errorf("%w: the job is done, so there is nothing to hand over", perdure.ErrStopped)
			}
		}
		if notice > 0 && time.Since(began) > notice+maxNoticeDelay {
			return fmt.Errorf("the notice of %v has expired, but some processes have not ended: %s; see perdure "+
				"status", notice, &last)
		}
		select {
		case <-time.After(drainPollInterval):
		case <-ctx.Done():
			return fmt.Errorf("%w: stopped waiting; the drain continues: see perdure status", ctx.Err())
		}
	}
}

// end returns the result of a drain, given the remaining part when it was last seen.
func (r *Remaining) end(last *Remaining, s *control.Status) error {
	if len(r.Lost) == 0 {
		return nil
	}
	what := "not all of their replicas were handed over"
	if last.Shards > 0 {
		what = fmt.Sprintf("about %d shards with %.1f MB were not handed over", last.Shards, float64(last.Bytes)/1e6)
	}
	return fmt.Errorf("%s: ended before other servers had taken over all replicas: %s; the job continues with "+
		"recovery %s",
		strings.Join(r.Lost, ", "), what, s.Recovery)
}
