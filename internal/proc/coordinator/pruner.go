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

// after schedules pruning after a checkpoint, when the current one is done. run must call its argument in a goroutine.
func (p *pruner) after(m checkpoint.Manifest, run func(func())) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next = &m; !p.busy {
		p.busy = true
		run(p.work)
	}
}

// work prunes until nothing is scheduled.
func (p *pruner) work() {
	for m := p.take(); m != nil; m = p.take() {
		p.prune(*m)
	}
}

func (p *pruner) take() *checkpoint.Manifest {
	p.mu.Lock()
	defer p.mu.Unlock()
	m := p.next
	p.next, p.busy = nil, m != nil
	return m
}
