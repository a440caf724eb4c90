package transport

import (
	"errors"
	"fmt"
	"sync"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// DefaultMaxQueued is how many bytes of frames a connection queues before Send blocks, unless its network's options
	// say otherwise.
	DefaultMaxQueued = 64 << 20
	// alwaysQueued is how many bytes are let in even where the budget has no room, so that who reads what comes is
	// served whatever others leave unread for which the same budget holds.
	alwaysQueued = wire.MaxPayload
)

// ErrFull is returned by TrySend when too much is queued already.
var ErrFull = errors.New("transport: too much is queued: the peer takes too little")

// errAllFull says that a batch would fit, were it not for the budget.
var errAllFull = fmt.Errorf("%w on all of its connections together", ErrFull)

// sendGate lets batches in, in order of arrival, while at most max bytes are
// inside. A batch that alone is larger is let in when nothing is inside. Every
// method is called with the owner's lock held.
//
// What is inside is counted in a budget, too, if there is one, from when it is let
// in until it leaves or the gate forgets it. Who waits is let in beyond the budget:
// what fills it may be on connections that only their peer can empty.
//
// Waiting is on a sync.Cond, which a testing/synctest bubble sees as blocked.
type sendGate struct {
	change sync.Cond // on the owner's lock: a batch left or entered, or the gate failed
	max    int
	inside int
	err    error   // what entering gives, once set
	budget *Budget // nil: there is none

	// Tickets keep a large batch from being overtaken by small ones for ever.
	next, serving uint64
}

// Init is called before all else. Of max ≤ 0 it takes Default.
func (g *sendGate) Init(owner sync.Locker, max int) {
	g.change.L = owner
	g.max = max
	if max <= 0 {
		g.max = DefaultMaxQueued
	}
}

// Enter waits until n bytes may go in; without wait it gives ErrFull instead.
func (g *sendGate) Enter(n int, wait bool) error {
	if !wait && g.err == nil {
		return g.tryEnter(n)
	}
	ticket := g.next
	g.next++
	for g.err == nil && (ticket != g.serving || !g.fits(n)) {
		g.change.Wait()
	}
	if g.err != nil {
		return g.err
	}
	g.budget.Add(int64(n))
	g.serving++
	g.inside += n
	if g.serving != g.next {
		g.change.Broadcast()
	}
	return nil
}

// tryEnter lets n bytes in unless they would have to wait, or the budget has no room. No ticket is out that was not
// served, so it needs none.
func (g *sendGate) tryEnter(n int) error {
	if g.next != g.serving || !g.fits(n) {
		return ErrFull
	}
	if g.inside == 0 || g.inside+n <= alwaysQueued {
		g.budget.Add(int64(n))
	} else if !g.budget.Take(int64(n)) {
		return errAllFull
	}
	g.inside += n
	return nil
}

// fits reports whether n bytes may go in beside those that are inside.
func (g *sendGate) fits(n int) bool { return g.inside == 0 || g.inside+n <= g.max }

// Charge has what is inside counted in a budget from now on, unless nobody is let in any more.
func (g *sendGate) Charge(b *Budget) {
	if g.err != nil {
		return
	}
	g.budget.Give(int64(g.inside))
	g.budget = b
	g.budget.Add(int64(g.inside))
}

// Forget gives back to the budget what is inside of a gate that has failed: its owner holds it no more.
func (g *sendGate) Forget() {
	g.budget.Give(int64(g.inside))
	g.budget = nil
}

// Leave says that n bytes are out.
func (g *sendGate) Leave(n int) {
	g.inside -= n
	g.budget.Give(int64(n))
	if g.serving != g.next {
		g.change.Broadcast()
	}
}

// Fail lets nobody in any more. The first error stays.
func (g *sendGate) Fail(err error) {
	if g.err == nil {
		g.err = err
		g.change.Broadcast()
	}
}

// Err is why nobody is let in any more, if so.
func (g *sendGate) Err() error { return g.err }

// Blocked reports whether somebody waits to be let in.
func (g *sendGate) Blocked() bool { return g.err == nil && g.next != g.serving }
