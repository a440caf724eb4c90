package coordinator

import (
	"sync"

	"github.com/perdure/perdure/internal/data/checkpoint"
)

// pruner deletes the files that checkpoints have made superfluous, outside of the loop, which must not wait for a
// store. It prunes one checkpoint at a time. Only the newest one waits, since pruning after it covers all earlier ones.
// All methods may be called concurrently.
type pruner struct {
	prune func(m checkpoint.Manifest)

	mu   sync.Mutex           // guards the fields below
	next *checkpoint.Manifest // the next checkpoint; nil if none
	busy bool
}

// schedule schedules pruning after a checkpoint, when the current one is done. run must call its argument in a
// goroutine.
func (p *pruner) schedule(m checkpoint.Manifest, run func(func())) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next = &m; !p.busy {
		p.busy = true
		run(p.run)
	}
}

// run prunes until nothing is scheduled.
func (p *pruner) run() {
	for m := p.takeNext(); m != nil; m = p.takeNext() {
		p.prune(*m)
	}
}

func (p *pruner) takeNext() *checkpoint.Manifest {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.next
	p.next, p.busy = nil, m != nil
	return m
}
