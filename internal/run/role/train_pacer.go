package role

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// pacer controls a worker from outside: it slows the worker down on purpose, or makes it end the job.
type pacer struct {
	MinTime     time.Duration // minimum computing time of a clock, before faults extend it
	goalReached atomic.Bool   // the run's parent has reported that the goal is reached

	mu     sync.Mutex // guards the fields below
	kind   string
	factor float64
	until  time.Time // zero: until the job ends
	rng    *rand.Rand
}

// End makes the worker end the job after its clock.
func (p *pacer) End() { p.goalReached.Store(true) }

// Set extends clocks by a kind of fault and its factor for a duration; 0 means until the job ends.
func (p *pacer) Set(kind string, factor float64, d time.Duration, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kind, p.factor, p.until = kind, factor, time.Time{}
	if d > 0 {
		p.until = time.Now().Add(d)
	}
	p.rng = rand.New(rand.NewPCG(seed, 1))
}

// wait extends a clock that computed for the given time to its target time.
func (p *pacer) wait(ctx context.Context, took time.Duration) error {
	left := p.target(took) - took
	if left <= 0 {
		return nil
	}
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// target returns how long a clock that computed for the given time should take: at least the minimum, multiplied by the
// fault's factor.
func (p *pacer) target(took time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	factor := p.factor
	if p.kind == "jitter" {
		factor = 1 + (p.factor-1)*p.rng.Float64()
	}
	if p.kind == "" || !p.until.IsZero() && time.Now().After(p.until) {
		factor = 1
	}
	return time.Duration(max(factor, 1) * float64(max(took, p.MinTime)))
}
