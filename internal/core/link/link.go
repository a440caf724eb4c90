// Package link connects a replica to its shard's chain: it knows predecessor and successor, keeps the log that
// goes along the chain, and turns the log's messages into frames and back. Package chain decides what goes to
// which neighbour; package link knows what an entry is, what it weighs, and which words to a neighbour may wait
// until others go with them. It is pure: it knows neighbours by their part, and the server has the connections.
//
// Invariants:
//   - what is counted of a slot's updates is what the log has of them and the replica has not;
//   - the word of what is committed is held back only while nobody waits for it: a joiner's tail,
//     a follower's predecessor that asks, and whoever waits for a fact hear at once;
//   - a tick is early only while some slot's tick of the same clock is still to be sent on.
//
// Nothing here is safe for concurrent use; the server's lock of the shard guards it.
package link

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// Ready is what the log wants done: entries for the replica, words for neighbours, copies for those
// who lack too much. It is the log's, until the next call.
type Ready = chain.Ready[replica.Entry]

// Outgoing is what the log wants told to a neighbour.
type Outgoing = chain.Outgoing[replica.Entry]

// Name says which life of which shard is meant.
type Name struct {
	Shard      perdure.ShardID
	Generation perdure.Generation
	Epoch      perdure.Epoch
}

// NameOf returns the life of a shard that a frame is of.
func NameOf(f *wire.Header) Name { return Name{f.Shard, f.Generation, f.Epoch} }

// Frame begins a frame of this life.
func (n Name) Frame(kind wire.Kind) wire.Frame {
	return wire.Frame{Header: wire.Header{
		Kind: kind, Generation: n.Generation, Epoch: n.Epoch, Shard: n.Shard, Slot: perdure.NoSlot,
	}}
}

// Link is one replica's. The zero Link is in no chain yet.
type Link struct {
	solo    bool // nobody follows anybody: what the log is given is committed
	all     bool // for a negative control: messages of other generations and epochs are taken
	name    Name
	place   Place
	log     *chain.Replica[replica.Entry] // nil until the rows are there, or are to come along the chain
	backlog backlog
	untold  untold
	ticked  []perdure.Clock // by slot: clocks of which ticks were sent on
	window  int
}

// Settings never change.
type Settings struct {
	Name Name // the life that it begins in
	Job  *perdure.JobSpec
	// Solo says that the shard has its log from elsewhere: nobody follows anybody, and whatever
	// the log here is given is committed.
	Solo bool
	All  bool // for a negative control: messages of other generations and epochs are taken
}

// entryWindow is how many bytes of entries a server sends ahead of what a successor has
// acknowledged, over all shards.
const entryWindow = 48 << 20

// New makes the link of a replica that has no log yet.
func New(s Settings) Link {
	return Link{
		name: s.Name, solo: s.Solo, all: s.All,
		window: min(max(entryWindow/s.Job.Shards, wire.PartBytes), 16<<20),
	}
}

// entryBytes is what an entry takes on its way.
func entryBytes(e replica.Entry) int { return wire.HeaderBytes + e.Frame.PayloadBytes() }

// Begin begins the log of a replica whose rows are there.
func (l *Link) Begin() {
	clear(l.backlog)
	l.log = chain.New(0, entryBytes, l.window)
}

// Join begins the log of a replica that is to be given rows along the chain.
func (l *Link) Join() { l.log = chain.NewJoiner(entryBytes, l.window) }

// Begun reports whether there is a log. Until then a link is only told what the view says.
func (l *Link) Begun() bool { return l.log != nil }

// Ready takes what the log wants done.
func (l *Link) Ready() Ready { return l.log.Ready() }

// End is how many entries the log has; none before it has begun.
func (l *Link) End() uint64 {
	if l.log == nil {
		return 0
	}
	return l.log.End()
}

// Applied is how many entries the log has given to the replica.
func (l *Link) Applied() uint64 { return l.log.Applied() }

// Serving reports whether the log, as the head's, takes entries and gives them on.
func (l *Link) Serving() bool { return l.log.Serving() }

// Wants reports whether a snapshot of a position would bring the replica on.
func (l *Link) Wants(pos uint64) bool { return l.log.Wants(pos) }

// Relink begins anew with a neighbour: what was sent to it may be lost.
func (l *Link) Relink(to chain.Peer) { l.log.Relink(to) }

// Elapse lets the time between two heartbeats pass.
func (l *Link) Elapse() { l.log.Tick() }

// Sync brings the other members of a periodic chain up to this one.
func (l *Link) Sync() { l.log.Sync() }

// Place is the replica's part, as the last view says.
func (l *Link) Place() *Place { return &l.place }

// Name is the life that the replica is in, as the last view says. Whoever asks has a lock under which
// Follow is called.
func (l *Link) Name() Name { return l.name }

// Follow brings the link to what a view says of it. renew: that is another epoch, in which the
// predecessor is to be told all anew.
func (l *Link) Follow(n Name, p *Place, renew bool) {
	l.name, l.place = n, *p
	if renew {
		l.untold = untold{}
	}
	if l.log == nil {
		return
	}
	if c := p.Config; !l.solo {
		l.log.Configure(c)
	} else {
		l.log.Configure(chain.Config{Epoch: c.Epoch, Head: true, Tail: true})
	}
}

// PrecededBy reports whether a server's process is the one that this replica follows.
func (l *Link) PrecededBy(server int, incarnation perdure.Incarnation) bool {
	pred := &l.place.Pred
	return !l.place.Head && pred.Server == server && pred.Incarnation == incarnation || l.all
}

// Yields reports whether this is a head that is to be dropped, and takes in nothing more: what
// it is sent, the next one is sent again.
func (l *Link) Yields(v *words.View) bool {
	mine := &v.Shards[l.name.Shard]
	return mine.Yields && l.place.Head && mine.Epoch == l.name.Epoch
}

// Yielded reports whether the next member is up to a head that yields: it may be dropped.
func (l *Link) Yielded(v *words.View) bool { return l.Yields(v) && l.log.Shared() }

// Joined reports whether a joining replica has come up with the tail.
func (l *Link) Joined() bool { return l.log != nil && l.log.Joined() }

// Append appends an entry, at the head.
func (l *Link) Append(e replica.Entry) {
	l.backlog.count(&e.Frame, 1)
	l.log.Append(e)
}

// Fact is the frame of a fact that the head has to say. Its epoch and number are put in when it
// is sent on.
func (l *Link) Fact(fact *replica.Fact) wire.Frame {
	return wire.Frame{
		Header: wire.Header{
			Kind: fact.Kind, Generation: l.name.Generation, Shard: l.name.Shard,
			Slot: fact.Slot, Incarnation: fact.Incarnation, Clock: fact.Clock,
		},
		Payload: fact.Payload,
	}
}

// Given says that the log gave an entry to the replica, of a job that ends at a clock, if not 0.
func (l *Link) Given(e *replica.Entry, end perdure.Clock) {
	l.untold.note(e, end)
	l.backlog.count(&e.Frame, -1)
}

// Restored says that the replica is now a snapshot of a position.
func (l *Link) Restored(pos uint64) {
	clear(l.backlog)
	l.log.Restored(pos)
}

// epochOf returns the epoch that another server's message is of: the present one, whatever it
// says, where that is weakened.
func (l *Link) epochOf(f *wire.Frame) perdure.Epoch {
	if l.all {
		return l.name.Epoch
	}
	return f.Epoch
}

// FromPredecessor takes a message of the predecessor, and reports whether its body is the log's
// from then on.
func (l *Link) FromPredecessor(f *wire.Frame) (kept bool) {
	m := chain.Message[replica.Entry]{Epoch: l.epochOf(f), Pos: f.Request, Joiner: uint64(f.Clock)}
	switch f.Kind {
	case wire.KindFollow:
		m.Kind, l.untold.followed = chain.Follow, m.Pos
	case wire.KindLevel:
		m.Kind = chain.Level
	default:
		m.Kind, m.Entry.Frame = chain.Entry, wire.Frame{
			Header: f.Header, Payload: slices.Clone(f.Payload),
			Body: f.Body,
		}
	}
	end := l.log.End()
	l.log.Step(chain.Predecessor, m)
	if kept = l.log.End() > end; kept {
		l.backlog.count(&m.Entry.Frame, 1)
	}
	return kept
}

// FromSuccessor takes a message of the successor, or of who joins.
func (l *Link) FromSuccessor(from chain.Peer, f *wire.Frame) {
	m := chain.Message[replica.Entry]{
		Kind: chain.Have, Epoch: l.epochOf(f), Pos: f.Request, Joiner: uint64(f.Clock),
		None: f.Flags&wire.FlagNone != 0,
	}
	if f.Kind == wire.KindCommitted {
		m.Kind = chain.Committed
	}
	l.log.Step(from, m)
}

// Word is the frame of what the log wants told. later: it is held back, and Owed has it then.
func (l *Link) Word(m *Outgoing, tailReads bool) (f wire.Frame, later bool) {
	f = l.name.Frame(wire.KindFollow)
	f.Clock = perdure.Clock(m.Joiner)
	switch m.Kind {
	case chain.Have:
		f.Kind = wire.KindHave
		if m.None {
			f.Flags = wire.FlagNone
		}
	case chain.Committed:
		f.Kind = wire.KindCommitted
		later = l.untold.holdsBack(m, tailReads)
	case chain.Level:
		f.Kind = wire.KindLevel
	case chain.Entry:
		f = m.Entry.Frame
		f.Generation = l.name.Generation
	}
	f.Epoch, f.Request = m.Epoch, m.Pos
	return f, later
}

// Owed returns the word of what is committed, if it was held back.
func (l *Link) Owed() (f wire.Frame, ok bool) {
	if !l.untold.held {
		return f, false
	}
	l.untold.told()
	f = l.name.Frame(wire.KindCommitted)
	f.Request = l.log.Committed()
	return f, true
}

// Early reports whether an entry that is sent on is a tick of a clock that other slots have not
// ticked yet: it changes nothing before they have, and goes with theirs.
func (l *Link) Early(f *wire.Frame, st *replica.State, v *words.View) bool {
	if f.Kind != wire.KindTick {
		return false
	}
	for int(f.Slot) >= len(l.ticked) {
		l.ticked = append(l.ticked, 0) // its roster is in the log, before it
	}
	l.ticked[f.Slot] = max(l.ticked[f.Slot], f.Clock+1)
	for slot := range st.Applied() {
		sent := consistency.Count(l.ticked, perdure.Slot(slot)) > f.Clock
		if sent || slot < len(v.Slots) && !v.Slots[slot].Has(f.Clock) {
			continue
		}
		if st.Counts(perdure.Slot(slot)).Ticked <= f.Clock {
			return true
		}
	}
	return false
}
