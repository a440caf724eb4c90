package role

import (
	"context"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// pacer is what a worker is told from outside: it makes it slow on purpose, or end
// the job.
type pacer struct {
	Least  time.Duration // of each clock's computing, before a fault makes it longer
	enough atomic.Bool   // the goal is reached, the run's parent says

	mu     sync.Mutex // guards what follows
	kind   string
	factor float64
	until  time.Time // zero: to the end
	rng    *rand.Rand
}

// End makes the worker end the job after its clock.
func (p *pacer) End() { p.enough.Store(true) }

// Set makes clocks take longer, by a kind of fault and its factor, for some time; 0: to the end.
func (p *pacer) Set(kind string, factor float64, d time.Duration, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kind, p.factor, p.until = kind, factor, time.Time{}
	if d > 0 {
		p.until = time.Now().Add(d)
	}
	p.rng = rand.New(rand.NewPCG(seed, 1))
}

// wait makes a clock that computed for so long compute for as long as it should.
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

// target is how long a clock that computed for so long should: the least there
// is, and as many times longer as the fault says.
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
	return time.Duration(max(factor, 1) * float64(max(took, p.Least)))
}
