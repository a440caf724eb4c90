package server

import (
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// place is this server's position in a shard's chain according to a view, and the peers to which it forwards entries.
type place struct {
	chain.Role
	succ, join, soon *peer // nil if there is none
}

// neighbours are the connections to a shard's neighbours in its chain. shard.mu guards them.
type neighbours struct {
	pred       *conn // from the predecessor; nil until it has sent a Follow
	succ, join *peer // nil if there is none
}

// follow updates the neighbours from a view. In a new epoch, the predecessor must send another Follow.
func (n *neighbours) follow(at *place, renew bool) {
	n.succ, n.join = at.succ, at.join
	if renew {
		n.pred = nil
	}
}

// after returns the peers that receive entries, indexed by their role.
func (n *neighbours) after() [chain.Joiner + 1]*peer {
	return [...]*peer{chain.Successor: n.succ, chain.Joiner: n.join}
}

// is returns the role of a peer that receives entries. ok is false if p is not a neighbour in this chain.
func (n *neighbours) is(p *peer) (as chain.Neighbor, ok bool) {
	switch p {
	case n.succ:
		return chain.Successor, true
	case n.join:
		return chain.Joiner, true
	}
	return 0, false
}

// conn returns the connection to a neighbour, or nil if there is none.
func (n *neighbours) conn(to chain.Neighbor) *conn {
	switch to {
	case chain.Successor:
		return n.succ.conn()
	case chain.Joiner:
		return n.join.conn()
	}
	return n.pred
}

// appendFact appends a fact to the log of a shard whose head is this server. The caller must hold sh.mu.
func (sh *shard) appendFact(fact *replica.ControlEntry) {
	f := sh.link.FactFrame(fact)
	if sh.stream != nil {
		sh.stream.Add(f, sh.link.Fence().Epoch)
		return
	}
	sh.link.Append(replica.Entry{Frame: f})
}

// pass sends a message of the chain. The caller must hold sh.mu.
func (sh *shard) pass(m *chain.LinkOutgoing) {
	f, later := sh.link.Frame(m, sh.rep.State.TailReads())
	to := sh.near.conn(m.To)
	switch {
	case later:
		sh.to.soon()
	case to == nil: // the chain requests it again when there is a connection
	case m.Kind == chain.Entry && sh.link.Deferrable(&f, &sh.rep.State, sh.view):
		sh.to.sendSoon(to, f)
	default:
		sh.to.send(to, f)
	}
}

// fromPredecessor processes a message from the shard's predecessor. It returns false if the shard is not restored yet
// or the message is of another epoch. Resulting frames go into the batch if to is not nil. The caller must hold sh.mu.
func (sh *shard) fromPredecessor(c *conn, f *wire.Frame, to *batch) (taken bool) {
	if !sh.link.Started() || sh.retired() || !sh.means(f) {
		return false
	}
	if !sh.link.PrecededBy(c.index, c.Incarnation) {
		c.rejectStranger(sh.id)
		return true
	}
	sh.to.batch = to
	defer func() { sh.to.batch = nil }()
	if f.Kind == wire.KindFollow {
		sh.near.pred = c
	}
	joined := sh.link.Joined()
	if kept := sh.link.FromPredecessor(f); kept {
		f.Body = nil
	}
	sh.advance()
	if sh.link.Joined() != joined {
		sh.s.notify()
	}
	return true
}

// fromSuccessor processes a message from a server that receives entries.
func (sh *shard) fromSuccessor(p *peer, f *wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.link.Started() || sh.retired() || !sh.means(f) {
		return
	}
	sh.to.batch = &p.batch
	defer func() { sh.to.batch = nil }()
	if as, ok := sh.near.is(p); ok {
		sh.link.FromSuccessor(as, f)
	}
	sh.advance()
	if sh.link.MayRetire(sh.view) {
		sh.s.notify()
	}
}

// relink restarts the exchange with a peer, because frames sent to it may be lost.
func (sh *shard) relink(p *peer) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	as, ok := sh.near.is(p)
	if !ok || !sh.link.Started() || sh.retired() {
		return
	}
	sh.link.Reconnected(as)
	sh.advance()
}

// tickChain advances the chain's time.
func (sh *shard) tickChain() {
	if !sh.mu.TryLock() {
		return // the shard is busy
	}
	defer sh.mu.Unlock()
	if sh.link.Started() && !sh.retired() {
		sh.link.AdvanceTime()
		sh.advance()
		sh.yield()
	}
}
