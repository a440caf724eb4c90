package httpdebug

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// Look is how a process is at one moment, as whoever does its work says.
type Look struct {
	Does     string // what it does, where it is ready
	NotReady string // why it does not do its work; "": it does
	// Waits says that the work waits for something that takes as long as it takes, a disk say, so that nobody could be
	// asked; "": somebody was.
	Waits   string
	Samples []Sample
}

// Seen is what a look has shown, or why it has not.
type Seen struct {
	Look
	Took time.Duration // how long the process's work has kept who looked waiting
	Err  error         // nobody has answered in time
}

// Probe asks the work of a process how it is. While one look is under way, others wait for the same.
type Probe struct {
	bound  time.Duration
	look   func() Look
	beside func() []Sample // what is known without the work; nil: nothing

	mu    sync.Mutex // guards under
	under *looking   // nil: no look is under way
}

// looking is a look that is under way.
type looking struct {
	began time.Time
	done  chan struct{} // closed when seen is there
	seen  Seen
}

// NewProbe asks by look, which may take as long as the work is stuck; who asks waits for the bound at most. beside has
// samples that need no look; it may be nil.
func NewProbe(bound time.Duration, look func() Look, beside func() []Sample) *Probe {
	return &Probe{bound: bound, look: look, beside: beside}
}

// Ask looks, and waits until the work has answered, ctx ends, or it has been too long.
func (p *Probe) Ask(ctx context.Context) Seen {
	p.mu.Lock()
	if p.under == nil {
		p.under = &looking{began: time.Now(), done: make(chan struct{})}
		go p.run(p.under)
	}
	l := p.under
	p.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, p.bound)
	defer cancel()
	select {
	case <-l.done:
		return l.seen
	case <-ctx.Done():
		took := time.Since(l.began)
		err := fmt.Errorf("its work is stuck: it has not answered for %v", took.Round(time.Millisecond))
		return Seen{Took: took, Err: err}
	}
}

func (p *Probe) run(l *looking) {
	l.seen.Look = p.look()
	l.seen.Took = time.Since(l.began)
	p.mu.Lock()
	p.under = nil
	p.mu.Unlock()
	close(l.done)
}
