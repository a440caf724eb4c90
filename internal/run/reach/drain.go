package reach

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

// Remains is what is left of a drain.
type Remains struct {
	Servers []string // that hold something, or have not ended
	Shards  int      // that these hold
	Bytes   int64    // of their rows, as far as they have said
	Workers []string // that have not left
	Lost    []string // servers that are gone before others had all
}

// Over reports whether nothing is left.
func (r *Remains) Over() bool { return len(r.Servers)+len(r.Workers) == 0 }

func (r *Remains) String() string {
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

// Left is what is left of a drain, as a status says.
func Left(s *control.Status, d *control.Draining) (r Remains) {
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
	drainLook = 100 * time.Millisecond
	// awayPatience is how long the coordinator may be away while a drain is waited for: the next one goes on.
	awayPatience = 30 * time.Second
	// noticeLate is how long after a notice its processes may still be seen.
	noticeLate = 10 * time.Second
)

// AwaitDrained waits until a drain is over, and tells what is left whenever that changes. An error says what was not
// handed over.
func AwaitDrained(ctx context.Context, client control.Backend, d *control.Draining, notice time.Duration,
	tell func(*Remains),
) error {
	began, heard := time.Now(), time.Now()
	var last Remains
	for {
		s, err := client.Status(ctx)
		switch {
		case errors.Is(err, control.ErrUnreachable) && time.Since(heard) < awayPatience:
		case err != nil:
			return err
		case s.RegistryAway != nil: // what ends now is not recorded, and so not decided
			heard = time.Now()
		default:
			heard = time.Now()
			r := Left(&s, d)
			if r.Over() {
				return r.end(&last, &s)
			}
			if r.String() != last.String() {
				tell(&r)
			}
			if last = r; s.State == control.StateDone {
				return fmt.Errorf("%w: the job is done: nobody need hand over anything any more", perdure.ErrStopped)
			}
		}
		if notice > 0 && time.Since(began) > notice+noticeLate {
			return fmt.Errorf("the notice of %v is over, and not all have ended: %s; see perdure status", notice, &last)
		}
		select {
		case <-time.After(drainLook):
		case <-ctx.Done():
			return fmt.Errorf("%w: nobody waits any more; the drain goes on: see perdure status", ctx.Err())
		}
	}
}

// end is how a drain has ended, given what was left when that was seen last.
func (r *Remains) end(last *Remains, s *control.Status) error {
	if len(r.Lost) == 0 {
		return nil
	}
	what := "what they held was not all handed over"
	if last.Shards > 0 {
		what = fmt.Sprintf("about %d shards with %.1f MB were not handed over", last.Shards, float64(last.Bytes)/1e6)
	}
	return fmt.Errorf("%s: ended before others had all: %s; the job goes on as recovery %s says",
		strings.Join(r.Lost, ", "), what, s.Recovery)
}
