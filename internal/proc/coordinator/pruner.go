package coordinator

import (
	"sync"

	"github.com/perdure/perdure/internal/data/checkpoint"
)

// pruner deletes what checkpoints have made superfluous, beside the loop, which waits for no store: one at a time.
// What the newest of them has made superfluous is all that those before it have, so no other waits its turn. All
// methods may be called concurrently.
type pruner struct {
	prune func(m checkpoint.Manifest)

	mu   sync.Mutex           // guards what follows
	next *checkpoint.Manifest // that is to be done; nil: none
	busy bool
}

// after prunes after a checkpoint, once what is under way is done. Whoever is given run calls it in a goroutine.
func (p *pruner) after(m checkpoint.Manifest, run func(func())) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.next = &m; !p.busy {
		p.busy = true
		run(p.work)
	}
}

// work prunes until there is nothing to do.
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
