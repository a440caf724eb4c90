package httpdebug

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// State is the state of a process at one moment, as reported by its main loop.
type State struct {
	Activity string // what the process is doing, if it is ready
	NotReady string // why the process is not ready; "" if it is ready
	// BlockedOn names what the process is blocked on without a time limit, for example a disk, so that the main loop
	// could not be asked. It is "" if the main loop answered.
	BlockedOn string
	Samples   []Sample
}

// Result is the result of a look: the state, or why it is unknown.
type Result struct {
	State
	Took time.Duration // how long the caller waited
	Err  error         // set if the process did not answer in time
}

// Probe asks the main loop of a process for its state. Concurrent callers share one look.
type Probe struct {
	timeout time.Duration
	report  func() State
	extra   func() []Sample // samples that need no look; may be nil

	mu      sync.Mutex     // guards pending
	pending *pendingReport // nil if no look is in progress
}

// pendingReport is a look in progress.
type pendingReport struct {
	began  time.Time
	done   chan struct{} // closed when result is set
	result Result
}

// NewProbe returns a probe that calls look, which may block as long as the process is stuck. Callers wait at most
// bound. beside returns samples that need no look; it may be nil.
func NewProbe(bound time.Duration, look func() State, beside func() []Sample) *Probe {
	return &Probe{timeout: bound, report: look, extra: beside}
}

// Ask takes a look and waits until the process has answered, ctx is done, or the time limit has passed.
func (p *Probe) Ask(ctx context.Context) Result {
	p.mu.Lock()
	if p.pending == nil {
		p.pending = &pendingReport{began: time.Now(), done: make(chan struct{})}
		go p.run(p.pending)
	}
	l := p.pending
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	select {
	case <-l.done:
		return l.result
	case <-ctx.Done():
		took := time.Since(l.began)
		err := fmt.Errorf("the process is stuck: it has not answered for %v", took.Round(time.Millisecond))
		return Result{Took: took, Err: err}
	}
}

func (p *Probe) run(l *pendingReport) {
	l.result.State = p.report()
	l.result.Took = time.Since(l.began)
	p.mu.Lock()
	p.pending = nil
	p.mu.Unlock()
	close(l.done)
}
