package chain

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
)

// LinkReady contains the actions that the log requires: entries for the replica, messages for neighbors, and snapshots
// for neighbors that lack too much. It is valid until the next call.
type LinkReady = Ready[replica.Entry]

// LinkOutgoing is a message for a neighbor.
type LinkOutgoing = Outgoing[replica.Entry]

// Fence identifies one life of a shard.
type Fence struct {
	Shard      perdure.ShardID
	Generation perdure.Generation
	Epoch      perdure.Epoch
}

// FenceOf returns the life of the shard that a frame belongs to.
func FenceOf(f *wire.Header) Fence { return Fence{f.Shard, f.Generation, f.Epoch} }

// Frame returns a new frame stamped with this life.
func (n Fence) Frame(kind wire.Kind) wire.Frame {
	return wire.Frame{Header: wire.Header{
		Kind: kind, Generation: n.Generation, Epoch: n.Epoch, Shard: n.Shard, Slot: perdure.NoSlot,
	}}
}

// Link is the link of one replica. The zero Link is not part of a chain.
type Link struct {
	solo      bool // the shard has no chain: every appended entry is committed
	acceptAll bool // negative control: accept messages of other generations and epochs
	fence     Fence
	role      Role
	log       *Log[replica.Entry] // nil until the rows are there, or will be received along the chain
	backlog   backlog
	commits   commitDelay
	ticked    []perdure.Clock // by slot: clocks whose ticks were forwarded
	window    int
}

// LinkOptions configure a Link. They never change.
type LinkOptions struct {
	Fence Fence // the initial life of the shard
	Job   *perdure.JobSpec
	// Solo means that the shard gets its log from elsewhere, without a chain. Every entry appended here is
	// committed.
	Solo      bool
	AcceptAll bool // negative control: accept messages of other generations and epochs
}

// entryWindow is how many bytes of entries a server sends ahead of its successors' acknowledgements, over all shards.
const entryWindow = 48 << 20

// NewLink returns the link of a replica that has no log yet.
func NewLink(s LinkOptions) Link {
	return Link{
		fence: s.Fence, solo: s.Solo, acceptAll: s.AcceptAll,
		window: min(max(entryWindow/s.Job.Shards, wire.PartBytes), 16<<20),
	}
}

// entryBytes returns the size of an entry on the wire.
func entryBytes(e replica.Entry) int { return wire.HeaderBytes + e.Frame.PayloadBytes() }

// Start starts the log of a replica that has its rows.
func (l *Link) Start() {
	clear(l.backlog)
	l.log = New(0, entryBytes, l.window)
}

// Join starts the log of a replica that will receive its rows along the chain.
func (l *Link) Join() { l.log = NewJoiner(entryBytes, l.window) }

// Started reports whether there is a log. Until then only Follow may be called.
func (l *Link) Started() bool { return l.log != nil }

// Ready returns the actions that the log requires.
func (l *Link) Ready() LinkReady { return l.log.Ready() }

// End returns the number of entries in the log, or 0 without a log.
func (l *Link) End() uint64 {
	if l.log == nil {
		return 0
	}
	return l.log.End()
}

// Applied returns the number of entries that the log has passed to the replica.
func (l *Link) Applied() uint64 { return l.log.Applied() }

// Serving reports whether the head's log accepts entries and passes them on.
func (l *Link) Serving() bool { return l.log.Serving() }

// NeedsSnapshot reports whether a snapshot of the given position would advance the replica.
func (l *Link) NeedsSnapshot(pos uint64) bool { return l.log.NeedsSnapshot(pos) }

// Reconnected restarts the exchange with a neighbor, because messages to it may be lost.
func (l *Link) Reconnected(to Neighbor) { l.log.Reconnected(to) }

// AdvanceTime advances time by one heartbeat interval.
func (l *Link) AdvanceTime() { l.log.Tick() }

// Sync brings the other members of a periodic chain up to date with this one.
func (l *Link) Sync() { l.log.Sync() }

// Role returns the replica's role according to the last view.
func (l *Link) Role() *Role { return &l.role }

// Fence returns the life of the replica according to the last view. The caller must hold a lock under which Follow is
// called.
func (l *Link) Fence() Fence { return l.fence }

// Follow applies a view to the link. If renew is set, a new epoch starts, in which everything must be reported to the
// predecessor again.
func (l *Link) Follow(n Fence, p *Role, renew bool) {
	l.fence, l.role = n, *p
	if renew {
		l.commits = commitDelay{}
	}
	if l.log == nil {
		return
	}
	if c := p.Config; !l.solo {
		l.log.Configure(c)
	} else {
		l.log.Configure(Config{Epoch: c.Epoch, Head: true, Tail: true})
	}
}

// PrecededBy reports whether a server's process is the predecessor of this replica.
func (l *Link) PrecededBy(server int, incarnation perdure.Incarnation) bool {
	pred := &l.role.Pred
	return !l.role.Head && pred.Server == server && pred.Incarnation == incarnation || l.acceptAll
}

// Retiring reports whether this replica is a head that will be removed, and so accepts nothing more. Workers resend to
// the next head whatever this one does not accept.
func (l *Link) Retiring(v *protocol.View) bool {
	mine := &v.Shards[l.fence.Shard]
	return mine.Yields && l.role.Head && mine.Epoch == l.fence.Epoch
}

// MayRetire reports whether the next member has caught up with a yielding head, which may then be removed.
func (l *Link) MayRetire(v *protocol.View) bool { return l.Retiring(v) && l.log.Replicated() }

// Joined reports whether a joiner has caught up with the tail.
func (l *Link) Joined() bool { return l.log != nil && l.log.Joined() }

// Append appends an entry, at the head.
func (l *Link) Append(e replica.Entry) {
	l.backlog.count(&e.Frame, 1)
	l.log.Append(e)
}

// FactFrame returns the frame of a fact that the head must append. Its epoch and number are filled in when it is
// forwarded.
func (l *Link) FactFrame(entry *replica.ControlEntry) wire.Frame {
	return wire.Frame{
		Header: wire.Header{
			Kind: entry.Kind, Generation: l.fence.Generation, Shard: l.fence.Shard,
			Slot: entry.Slot, Incarnation: entry.Incarnation, Clock: entry.Clock,
		},
		Payload: entry.Payload,
	}
}

// Applying records that the log passed an entry to the replica. end is the clock at which the job ends, or 0.
func (l *Link) Applying(e *replica.Entry, end perdure.Clock) {
	l.commits.add(e, end)
	l.backlog.count(&e.Frame, -1)
}

// Restored records that the replica is now a snapshot of the given position.
func (l *Link) Restored(pos uint64) {
	clear(l.backlog)
	l.log.Restored(pos)
}

// epochOf returns the epoch of another server's message. In a negative control it is always the current epoch.
func (l *Link) epochOf(f *wire.Frame) perdure.Epoch {
	if l.acceptAll {
		return l.fence.Epoch
	}
	return f.Epoch
}

// FromPredecessor handles a message of the predecessor, and reports whether the log keeps its body.
func (l *Link) FromPredecessor(f *wire.Frame) (kept bool) {
	m := Message[replica.Entry]{Epoch: l.epochOf(f), Pos: f.Request, Joiner: uint64(f.Clock)}
	switch f.Kind {
	case wire.KindFollow:
		m.Kind, l.commits.followed = Follow, m.Pos
	case wire.KindCaughtUp:
		m.Kind = Level
	default:
		m.Kind, m.Entry.Frame = Entry, wire.Frame{
			Header: f.Header, Payload: slices.Clone(f.Payload),
			Body: f.Body,
		}
	}
	end := l.log.End()
	l.log.Step(Predecessor, m)
	if kept = l.log.End() > end; kept {
		l.backlog.count(&m.Entry.Frame, 1)
	}
	return kept
}

// FromSuccessor handles a message of the successor or the joiner.
func (l *Link) FromSuccessor(from Neighbor, f *wire.Frame) {
	m := Message[replica.Entry]{
		Kind: Have, Epoch: l.epochOf(f), Pos: f.Request, Joiner: uint64(f.Clock),
		None: f.Flags&wire.FlagNone != 0,
	}
	if f.Kind == wire.KindCommitted {
		m.Kind = Committed
	}
	l.log.Step(from, m)
}

// Frame returns the frame of a message. later means that it is held back, and Owed will return it.
func (l *Link) Frame(m *LinkOutgoing, tailReads bool) (f wire.Frame, later bool) {
	f = l.fence.Frame(wire.KindFollow)
	f.Clock = perdure.Clock(m.Joiner)
	switch m.Kind {
	case Have:
		f.Kind = wire.KindHave
		if m.None {
			f.Flags = wire.FlagNone
		}
	case Committed:
		f.Kind = wire.KindCommitted
		later = l.commits.defers(m, tailReads)
	case Level:
		f.Kind = wire.KindCaughtUp
	case Entry:
		f = m.Entry.Frame
		f.Generation = l.fence.Generation
	}
	f.Epoch, f.Request = m.Epoch, m.Pos
	return f, later
}

// PendingCommit returns the Committed message, if it was held back.
func (l *Link) PendingCommit() (f wire.Frame, ok bool) {
	if !l.commits.pending {
		return f, false
	}
	l.commits.clear()
	f = l.fence.Frame(wire.KindCommitted)
	f.Request = l.log.Committed()
	return f, true
}

// Deferrable reports, under two-step clocks, whether a forwarded entry is a tick of a clock that other slots have not
// ticked yet. It has no effect before they have, so it can be sent together with their ticks.
func (l *Link) Deferrable(f *wire.Frame, st *replica.State, v *protocol.View) bool {
	if f.Kind != wire.KindTick {
		return false
	}
	for int(f.Slot) >= len(l.ticked) {
		l.ticked = append(l.ticked, 0) // the new membership precedes it in the log
	}
	l.ticked[f.Slot] = max(l.ticked[f.Slot], f.Clock+1)
	for slot := range st.Applied() {
		sent := consistency.AppliedCount(l.ticked, perdure.Slot(slot)) > f.Clock
		if sent || slot < len(v.Slots) && !v.Slots[slot].Has(f.Clock) {
			continue
		}
		if st.Counts(perdure.Slot(slot)).Ticked <= f.Clock {
			return true
		}
	}
	return false
}
