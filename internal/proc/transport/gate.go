package transport

import (
	"errors"
	"fmt"
	"sync"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// DefaultMaxQueued is the default number of bytes that a connection queues before Send blocks.
	DefaultMaxQueued = 64 << 20
	// alwaysQueued is how many bytes each connection may queue even if the budget is used up. So a connection that is
	// read is served, whatever its peer leaves unread on others with the same budget.
	alwaysQueued = wire.MaxPayload
)

// ErrFull is returned by TrySend when the send queue is full.
var ErrFull = errors.New("transport: the send queue is full: the peer reads too slowly")

// errAllFull means that only the budget prevents queueing a batch.
var errAllFull = fmt.Errorf("%w (on all of its connections together)", ErrFull)

// sendGate admits batches in order of arrival while at most max bytes are inside. A larger batch is admitted when
// nothing is inside. The caller of every method must hold the owner's lock.
//
// If there is a budget, bytes are charged to it from their admission until they leave or the gate forgets them. Waiting
// batches are admitted even beyond the budget, because the bytes that fill it may be on connections that only their
// peer can empty.
//
// Waiting uses a sync.Cond, which a testing/synctest bubble recognizes as blocked.
type sendGate struct {
	change sync.Cond // uses the owner's lock; signals that a batch left or entered, or the gate failed
	max    int
	inside int
	err    error   // the error of Enter once the gate has failed
	budget *Budget // nil if there is none

	// Tickets ensure that small batches do not overtake a large one forever.
	next, serving uint64
}

// Init must be called first. max ≤ 0 selects DefaultMaxQueued.
func (g *sendGate) Init(owner sync.Locker, max int) {
	g.change.L = owner
	g.max = max
	if max <= 0 {
		g.max = DefaultMaxQueued
	}
}

// Enter admits n bytes. If it would have to wait, it waits or, without wait, returns ErrFull.
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

// tryEnter admits n bytes unless they would have to wait or the budget is used up. It needs no ticket, because none is
// waiting.
func (g *sendGate) tryEnter(n int) error {
	if g.next != g.serving || !g.fits(n) {
		return ErrFull
	}
	if g.inside == 0 || g.inside+n <= alwaysQueued {
		g.budget.Add(int64(n))
	} else if !g.budget.TryAdd(int64(n)) {
		return errAllFull
	}
	g.inside += n
	return nil
}

// fits reports whether n more bytes may be inside.
func (g *sendGate) fits(n int) bool { return g.inside == 0 || g.inside+n <= g.max }

// Charge charges the bytes inside to a budget from now on, unless the gate has failed.
func (g *sendGate) Charge(b *Budget) {
	if g.err != nil {
		return
	}
	g.budget.Remove(int64(g.inside))
	g.budget = b
	g.budget.Add(int64(g.inside))
}

// ReleaseBudget returns the bytes inside a failed gate to the budget, because the owner no longer holds them.
func (g *sendGate) ReleaseBudget() {
	g.budget.Remove(int64(g.inside))
	g.budget = nil
}

// Leave records that n bytes have left.
func (g *sendGate) Leave(n int) {
	g.inside -= n
	g.budget.Remove(int64(n))
	if g.serving != g.next {
		g.change.Broadcast()
	}
}

// Fail closes the gate. The first error is kept.
func (g *sendGate) Fail(err error) {
	if g.err == nil {
		g.err = err
		g.change.Broadcast()
	}
}

// Err returns the error that closed the gate, or nil.
func (g *sendGate) Err() error { return g.err }

// Blocked reports whether a batch is waiting.
func (g *sendGate) Blocked() bool { return g.err == nil && g.next != g.serving }
