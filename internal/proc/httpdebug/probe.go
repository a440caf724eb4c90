package httpdebug

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Look is the state of a process at one moment, as reported by its main loop.
type Look struct {
	Does     string // what the process is doing, if it is ready
	NotReady string // why the process is not ready; "" if it is ready
	// Waits names what the process is blocked on without a time limit, for example a disk, so that the main loop could
	// not be asked. It is "" if the main loop answered.
	Waits   string
	Samples []Sample
}

// Seen is the result of a look: the state, or why it is unknown.
type Seen struct {
	Look
	Took time.Duration // how long the caller waited
	Err  error         // set if the process did not answer in time
}

// Probe asks the main loop of a process for its state. Concurrent callers share one look.
type Probe struct {
	bound time.Duration
	look  func() Look
	extra func() []Sample // samples that need no look; may be nil

	mu      sync.Mutex   // guards pending
	pending *pendingLook // nil if no look is in progress
}

// pendingLook is a look in progress.
type pendingLook struct {
	began time.Time
	done  chan struct{} // closed when seen is set
	seen  Seen
}

// NewProbe returns a probe that calls look, which may block as long as the process is stuck. Callers wait at most
// bound. beside returns samples that need no look; it may be nil.
func NewProbe(bound time.Duration, look func() Look, beside func() []Sample) *Probe {
	return &Probe{bound: bound, look: look, extra: beside}
}

// Ask takes a look and waits until the process has answered, ctx is done, or the time limit has passed.
func (p *Probe) Ask(ctx context.Context) Seen {
	p.mu.Lock()
	if p.pending == nil {
		p.pending = &pendingLook{began: time.Now(), done: make(chan struct{})}
		go p.run(p.pending)
	}
	l := p.pending
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.bound)
	defer cancel()
	select {
	case <-l.done:
		return l.seen
	case <-ctx.Done():
		took := time.Since(l.began)
		err := fmt.Errorf("the process is stuck: it has not answered for %v", took.Round(time.Millisecond))
		return Seen{Took: took, Err: err}
	}
}

func (p *Probe) run(l *pendingLook) {
	l.seen.Look = p.look()
	l.seen.Took = time.Since(l.began)
	p.mu.Lock()
	p.pending = nil
	p.mu.Unlock()
	close(l.done)
}
