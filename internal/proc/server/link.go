package server

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// entryBytes is what an entry takes on its way.
func entryBytes(e replica.Entry) int { return wire.HeaderBytes + e.Frame.PayloadBytes() }

// backlog is, by slot, what updates and ticks take that are in the log and not in the replica.
type backlog []int64

// of returns what a slot's take.
func (b backlog) of(slot perdure.Slot) int64 {
	if int(slot) >= len(b) {
		return 0
	}
	return b[slot]
}

// count counts an entry: sign 1 when it comes, -1 when it has gone to the replica.
func (b *backlog) count(f *wire.Frame, sign int64) {
	for int(f.Slot) >= len(*b) {
		*b = append(*b, 0)
	}
	(*b)[f.Slot] += sign * logCost(f)
}

// logCost is what a worker's entry counts while it is in the log and not in the replica.
func logCost(f *wire.Frame) int64 { return consistency.PartCost + int64(len(f.Body)) }

// entryWindow is how many bytes of entries a server sends ahead of what a successor
// has acknowledged, over all shards.
const entryWindow = 48 << 20

func window(job *perdure.JobSpec) int {
	return min(max(entryWindow/job.Shards, wire.PartBytes), 16<<20)
}

// place is a server's part in a shard's chain, as a view says.
type place struct {
	config     chain.Config
	since      uint64
	succ, join *peer // nil: nobody
	// Who joins and may be the successor soon: connected to now, since nobody waits for it yet.
	next *peer
	pred perdure.Holder // whom it follows, unless it is the head
}

// reads reports whether rows of vap tables are read here: of no other replica is it
// known, then, what slots can see.
func (at *place) reads() bool {
	if at.config.Eager {
		return at.config.Head
	}
	return at.config.Tail
}

// appendFact appends to the log what this server, as its head, has to say. It needs sh.mu.
func (sh *shard) appendFact(fact *replica.Fact) {
	f := wire.Frame{
		Header: wire.Header{
			Kind: fact.Kind, Generation: sh.name.generation, Shard: sh.id,
			Slot: fact.Slot, Incarnation: fact.Incarnation, Clock: fact.Clock,
		},
		Payload: fact.Payload,
	}
	if sh.stream != nil {
		sh.enqueue(f)
		return
	}
	sh.log.Append(replica.Entry{Frame: f})
}

// pass sends what the chain wants told. It needs sh.mu.
func (sh *shard) pass(m *chain.Outgoing[replica.Entry]) {
	f := sh.frame(wire.KindFollow)
	f.Clock = perdure.Clock(m.Joiner)
	switch m.Kind {
	case chain.Have:
		f.Kind = wire.KindHave
		if m.None {
			f.Flags = wire.FlagNone
		}
	case chain.Committed:
		if sh.holdsBack(m) {
			return
		}
		f.Kind = wire.KindCommitted
	case chain.Level:
		f.Kind = wire.KindLevel
	case chain.Entry:
		f = m.Entry.Frame
		f.Generation = sh.name.generation
	}
	f.Epoch, f.Request = m.Epoch, m.Pos
	var to *conn
	switch m.To {
	case chain.Predecessor:
		to = sh.pred
	case chain.Successor:
		to = sh.place.succ.conn()
	case chain.Joiner:
		to = sh.place.join.conn()
	}
	switch {
	case to == nil: // it is asked for again when there is a connection
	case m.Kind == chain.Entry && sh.early(&f):
		sh.sendSoon(to, f)
	default:
		sh.send(to, f)
	}
}

// epochOf returns the epoch that another server's message is of: the present one,
// whatever it says, where that is weakened.
func (sh *shard) epochOf(f *wire.Frame) perdure.Epoch {
	if sh.s.cfg.weak.Generations {
		return sh.name.epoch
	}
	return f.Epoch
}

// fromPredecessor takes a message of the shard's predecessor, unless the shard is not
// restored yet. box is nil unless the goroutine is the one that receives from c.
func (sh *shard) fromPredecessor(c *conn, f *wire.Frame, box *outbox) (taken bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() {
		return false
	}
	if !sh.precededBy(c) {
		sh.strange(c)
		return true
	}
	sh.box = box
	defer func() { sh.box = nil }()
	m := chain.Message[replica.Entry]{Epoch: sh.epochOf(f), Pos: f.Request, Joiner: uint64(f.Clock)}
	switch f.Kind {
	case wire.KindFollow:
		m.Kind, sh.pred, sh.untold.followed = chain.Follow, c, m.Pos
	case wire.KindLevel:
		m.Kind = chain.Level
	default:
		m.Kind, m.Entry.Frame = chain.Entry, wire.Frame{
			Header: f.Header, Payload: slices.Clone(f.Payload),
			Body: f.Body,
		}
	}
	end, joined := sh.log.End(), sh.log.Joined()
	sh.log.Step(chain.Predecessor, m)
	if sh.log.End() > end {
		f.Body = nil // the log has it now
		if f.Kind == wire.KindUpdate || f.Kind == wire.KindTick {
			sh.backlog.count(&m.Entry.Frame, 1)
		}
	}
	sh.advance()
	if sh.log.Joined() != joined {
		sh.s.notify()
	}
	return true
}

// fromSuccessor takes what a server to which entries go says.
func (sh *shard) fromSuccessor(p *peer, f *wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() {
		return
	}
	sh.box = &p.box
	defer func() { sh.box = nil }()
	m := chain.Message[replica.Entry]{
		Kind: chain.Have, Epoch: sh.epochOf(f), Pos: f.Request, Joiner: uint64(f.Clock),
		None: f.Flags&wire.FlagNone != 0,
	}
	if f.Kind == wire.KindCommitted {
		m.Kind = chain.Committed
	}
	switch p {
	case sh.place.succ:
		sh.log.Step(chain.Successor, m)
	case sh.place.join:
		sh.log.Step(chain.Joiner, m)
	}
	sh.advance()
	if sh.yields() && sh.log.Shared() {
		sh.s.notify()
	}
}

// relink begins anew with a peer: what was sent to it may be lost.
func (sh *shard) relink(p *peer) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.log == nil || sh.retired() {
		return
	}
	switch p {
	case sh.place.succ:
		sh.log.Relink(chain.Successor)
	case sh.place.join:
		sh.log.Relink(chain.Joiner)
	default:
		return
	}
	sh.advance()
}

// tickChain lets time pass.
func (sh *shard) tickChain() {
	if !sh.mu.TryLock() {
		return // it is at work
	}
	defer sh.mu.Unlock()
	if sh.log != nil && !sh.retired() {
		sh.log.Tick()
		sh.advance()
		sh.yield()
	}
}
