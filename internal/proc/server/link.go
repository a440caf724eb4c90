package server

import (
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// place is this server's part in a shard's chain, as a view says, and its ways to the servers to which
// entries go.
type place struct {
	link.Place
	succ, join, soon *peer // nil: nobody
}

// neighbours are the connections to those beside a shard in its chain. shard.mu guards them.
type neighbours struct {
	pred       *conn // from the predecessor; nil: it has not asked for anything yet
	succ, join *peer // nil: nobody
}

// follow brings the neighbours to what a view says; in another epoch, the predecessor asks anew.
func (n *neighbours) follow(at *place, renew bool) {
	n.succ, n.join = at.succ, at.join
	if renew {
		n.pred = nil
	}
}

// after are those to whom entries go, by what they are.
func (n *neighbours) after() [chain.Joiner + 1]*peer {
	return [...]*peer{chain.Successor: n.succ, chain.Joiner: n.join}
}

// is returns what a peer is that entries go to; not ok: it is nobody beside this shard.
func (n *neighbours) is(p *peer) (as chain.Peer, ok bool) {
	switch p {
	case n.succ:
		return chain.Successor, true
	case n.join:
		return chain.Joiner, true
	}
	return 0, false
}

// conn returns the connection to a neighbour; nil: there is none now.
func (n *neighbours) conn(to chain.Peer) *conn {
	switch to {
	case chain.Successor:
		return n.succ.conn()
	case chain.Joiner:
		return n.join.conn()
	}
	return n.pred
}

// appendFact appends to the log what this server, as its head, has to say. It needs sh.mu.
func (sh *shard) appendFact(fact *replica.Fact) {
	f := sh.link.Fact(fact)
	if sh.stream != nil {
		sh.stream.Add(f, sh.link.Name().Epoch)
		return
	}
	sh.link.Append(replica.Entry{Frame: f})
}

// pass sends what the chain wants told. It needs sh.mu.
func (sh *shard) pass(m *link.Outgoing) {
	f, later := sh.link.Word(m, sh.rep.State.TailReads())
	to := sh.near.conn(m.To)
	switch {
	case later:
		sh.to.soon()
	case to == nil: // it is asked for again when there is a connection
	case m.Kind == chain.Entry && sh.link.Early(&f, &sh.rep.State, sh.view):
		sh.to.sendSoon(to, f)
	default:
		sh.to.send(to, f)
	}
}

// fromPredecessor takes a message of the shard's predecessor, unless the shard is not
// restored yet. What is sent because of it goes into a batch, if there is one. It needs sh.mu.
func (sh *shard) fromPredecessor(c *conn, f *wire.Frame, to *batch) (taken bool) {
	if !sh.link.Begun() || sh.retired() || !sh.means(f) {
		return false
	}
	if !sh.link.PrecededBy(c.index, c.Incarnation) {
		c.strange(sh.id)
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

// fromSuccessor takes what a server to which entries go says.
func (sh *shard) fromSuccessor(p *peer, f *wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if !sh.link.Begun() || sh.retired() || !sh.means(f) {
		return
	}
	sh.to.batch = &p.batch
	defer func() { sh.to.batch = nil }()
	if as, ok := sh.near.is(p); ok {
		sh.link.FromSuccessor(as, f)
	}
	sh.advance()
	if sh.link.Yielded(sh.view) {
		sh.s.notify()
	}
}

// relink begins anew with a peer: what was sent to it may be lost.
func (sh *shard) relink(p *peer) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	as, ok := sh.near.is(p)
	if !ok || !sh.link.Begun() || sh.retired() {
		return
	}
	sh.link.Relink(as)
	sh.advance()
}

// tickChain lets time pass.
func (sh *shard) tickChain() {
	if !sh.mu.TryLock() {
		return // it is at work
	}
	defer sh.mu.Unlock()
	if sh.link.Begun() && !sh.retired() {
		sh.link.Elapse()
		sh.advance()
		sh.yield()
	}
}
