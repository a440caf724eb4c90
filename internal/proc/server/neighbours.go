package server

import (
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// chainPosition is this server's position in a shard's chain according to a view, and the peers to which it forwards
// entries.
type chainPosition struct {
	chain.Role
	successor, joiner, nextSuccessor *peer // nil if there is none
}

// neighbours are the connections to a shard's neighbours in its chain. shard.mu guards them.
type neighbours struct {
	predecessor       *conn // from the predecessor; nil until it has sent a Follow
	successor, joiner *peer // nil if there is none
}

// follow updates the neighbours from a view. In a new epoch, the predecessor must send another Follow.
func (n *neighbours) follow(at *chainPosition, renew bool) {
	n.successor, n.joiner = at.successor, at.joiner
	if renew {
		n.predecessor = nil
	}
}

// receivers returns the peers that receive entries, indexed by their role.
func (n *neighbours) receivers() [chain.Joiner + 1]*peer {
	return [...]*peer{chain.Successor: n.successor, chain.Joiner: n.joiner}
}

// roleOf returns the role of a peer that receives entries. ok is false if p is not a neighbour in this chain.
func (n *neighbours) roleOf(p *peer) (as chain.Neighbor, ok bool) {
	switch p {
	case n.successor:
		return chain.Successor, true
	case n.joiner:
		return chain.Joiner, true
	}
	return 0, false
}

// conn returns the connection to a neighbour, or nil if there is none.
func (n *neighbours) conn(to chain.Neighbor) *conn {
	switch to {
	case chain.Successor:
		return n.successor.conn()
	case chain.Joiner:
		return n.joiner.conn()
	}
	return n.predecessor
}

// appendFactLocked appends a fact to the log of a shard whose head is this server. The caller must hold sh.mu.
func (sh *shard) appendFactLocked(entry *replica.ControlEntry) {
	f := sh.link.FactFrame(entry)
	if sh.stream != nil {
		sh.stream.AddLocked(f, sh.link.Fence().Epoch)
		return
	}
	sh.link.Append(replica.Entry{Frame: f})
}

// sendMessageLocked sends a message of the chain. The caller must hold sh.mu.
func (sh *shard) sendMessageLocked(m *chain.LinkOutgoing) {
	f, later := sh.link.Frame(m, sh.rep.State.TailReads())
	to := sh.neighbours.conn(m.To)
	switch {
	case later:
		sh.sender.scheduleFlush()
	case to == nil: // the chain requests it again when there is a connection
	case m.Kind == chain.Entry && sh.job.TwoStep(sh.view.Tables) && sh.link.Deferrable(&f, &sh.rep.State, sh.view):
		sh.sender.sendDelayed(to, f)
	default:
		sh.sender.send(to, f)
	}
}

// fromPredecessorLocked processes a message from the shard's predecessor. It returns false if the shard is not restored
// yet or the message is of another epoch. Resulting frames go into the batch if to is not nil. The caller must hold
// sh.mu.
func (sh *shard) fromPredecessorLocked(c *conn, f *wire.Frame, to *batch) (taken bool) {
	if !sh.link.Started() || sh.retired() || !sh.isCurrentLocked(f) {
		return false
	}
	if !sh.link.PrecededBy(c.index, c.Incarnation) {
		c.rejectNonPredecessor(sh.id)
		return true
	}
	sh.sender.batch = to
	defer func() { sh.sender.batch = nil }()
	if f.Kind == wire.KindFollow {
		sh.neighbours.predecessor = c
	}
	joined := sh.link.Joined()
	if kept := sh.link.FromPredecessor(f); kept {
		f.Body = nil
	}
	sh.advanceLocked()
	if sh.link.Joined() != joined {
		sh.s.notify()
	}
	return true
}

// fromSuccessor processes a message from a server that receives entries.
func (sh *shard) fromSuccessor(p *peer, f *wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.link.Started() || sh.retired() || !sh.isCurrentLocked(f) {
		return
	}
	sh.sender.batch = &p.batch
	defer func() { sh.sender.batch = nil }()
	if as, ok := sh.neighbours.roleOf(p); ok {
		sh.link.FromSuccessor(as, f)
	}
	sh.advanceLocked()
	if sh.link.MayRetire(sh.view) {
		sh.s.notify()
	}
}

// relink restarts the exchange with a peer, because frames sent to it may be lost.
func (sh *shard) relink(p *peer) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	as, ok := sh.neighbours.roleOf(p)
	if !ok || !sh.link.Started() || sh.retired() {
		return
	}
	sh.link.Reconnected(as)
	sh.advanceLocked()
}

// tickChain advances the chain's time.
func (sh *shard) tickChain() {
	if !sh.mu.TryLock() {
		return // the shard is busy
	}
	defer sh.mu.Unlock()
	if sh.link.Started() && !sh.retired() {
		sh.link.AdvanceTime()
		sh.rep.Tick()
		sh.advanceLocked()
		sh.yieldLocked()
	}
}
