// Package chain replicates one shard's log along a chain of servers, as a state
// machine (chain replication; van Renesse and Schneider, OSDI 2004).
//
// The log is a sequence of entries with the positions 1, 2, …, which goes on over
// all epochs. The head appends; every member gets the entries, in order, from its
// predecessor, and passes them on. What the tail has is committed: it says so to
// its predecessor, and that one to its own. An entry is given to be applied once it
// is committed, on every member alike; so what a member shows is what all members
// have, and no later failure takes it back.
//
// A [Replica] is one member's part. It is told how the chain is ([Replica.Configure]),
// what came ([Replica.Step], [Replica.Append]) and that time passes ([Replica.Tick]),
// and says in [Ready] what to send and what to apply. It starts no goroutine, knows
// no clock and does no I/O.
//
// Invariants:
//   - the log of a member is a prefix of its predecessor's;
//   - committed ≤ the end of every member's log;
//   - entries are given to be applied in order, each once, and none before it is
//     committed (an eager head: none that is not in its log);
//   - messages of another epoch change nothing.
//
// A replica that joins copies from the tail, and counts for nothing until it is level
// with it. From then on the tail counts it as a successor: it holds an entry committed
// once the joiner has it, too. So who says that it has joined may be made the tail of
// the next epoch, whatever the old tail, which may hear of that late, still commits.
//
// Messages may be lost, doubled, and come after those of a newer connection; but what
// is sent on one connection, and arrives, arrives in order. Snapshots may come on a
// connection of their own: one is taken only in the epoch that it was sent in, and only
// where [Replica.Wants] says so.
package chain

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
)

// Peer says whom a message is for, or whom it is from.
type Peer int

// The peers of a member.
const (
	Predecessor Peer = iota
	Successor
	Joiner // copies from the tail; no member yet
)

// Kind says what a message means.
type Kind int

// The kinds of messages.
const (
	Follow    Kind = iota // to the successor or joiner: this is the epoch; what have you?
	Have                  // to the predecessor: all entries up to Pos; None: nothing at all
	Entry                 // to the successor or joiner: the entry at Pos
	Committed             // to the predecessor: the tail (of a joiner: it) has all up to Pos
	Level                 // to the joiner: you have been sent all up to Pos, and from now on you count
)

// Message is what members tell each other. E is what an entry holds.
type Message[E any] struct {
	Kind  Kind
	Epoch perdure.Epoch
	Pos   uint64
	None  bool // Have: a snapshot is needed
	// Joiner names the joiner that it is for or from; 0: it is between members. (It may
	// be left out where Kind is Entry.)
	Joiner uint64
	Entry  E
}

// Outgoing is a message and whom it is for.
type Outgoing[E any] struct {
	To Peer
	Message[E]
}

// Given is an entry to be applied.
type Given[E any] struct {
	Entry E
	Pos   uint64
	// Kept says that it is not the receiver's alone: it stays in the log and may be sent
	// again, or a connection may still have it that nobody acknowledges.
	Kept bool
}

// Ready is what a Replica wants done, in this order. The slices are used again:
// they are good until the replica is called next. An entry of Apply that is not Kept
// can be in Messages, too, where Ready was not asked for after every call.
type Ready[E any] struct {
	Apply    []Given[E]
	Messages []Outgoing[E]
	// Snapshot says of each peer that it lacks what the log does not reach back to:
	// it needs a snapshot of what is applied, as of position Applied(). Once it has it,
	// it says Have.
	Snapshot [Joiner + 1]bool
}

// Config says how the chain is, as seen by one member.
type Config struct {
	Epoch   perdure.Epoch
	Head    bool // it has no predecessor
	Tail    bool // it has no successor
	Joining bool // it is no member yet, but copies from the tail
	// Joiner names who copies from this member, the tail; 0: nobody. A joining
	// replica's is its own name. Who begins to join anew, without the state that it
	// had, has a new name.
	Joiner uint64
	// Eager makes the head apply at once, before others have an entry, while those
	// that others do not have take no more than a few windows.
	Eager bool
	// Periodic members keep no log: their successors get snapshots, when Sync says
	// so. It needs Eager.
	Periodic bool
}

// Replica is one member's part of a chain. See the package comment. It is not safe
// for concurrent use.
type Replica[E any] struct {
	cfg    Config
	size   func(E) int
	window int
	weak   weaken.Set

	log       []E    // free places, to be used again, and then the entries from first on
	free      int    // how many
	first     uint64 // position of log[free]; the log is empty where first > end
	end       uint64 // of the last entry
	committed uint64
	given     uint64        // the last that was given to be applied
	begun     uint64        // end when the epoch began
	has       bool          // there is a state: not of a joiner before its snapshot
	asked     perdure.Epoch // the highest in which a predecessor greeted before its view was here
	joined    bool
	told      uint64 // what the predecessor was told is committed
	open      int    // bytes of the entries that are not committed, of an eager head
	kept      int    // bytes of the entries in the log
	lent      uint64 // up to here, entries may be on their way more often than they are acknowledged

	succ, join        link
	ready             Ready[E]
	applies, messages int // of the last Ready
}

// link is what is known of a successor or joiner.
type link struct {
	to       Peer
	there    bool
	known    bool   // has means something: all that follows it is kept
	greeted  bool   // it has said what it has since it was last asked
	sent     uint64 // the last entry that it was sent
	has      uint64 // the last that it says it has, or that its snapshot will contain
	bytes    int    // of entries sent and not acknowledged
	copying  bool   // it is being sent a snapshot
	levelled bool   // it was told that it is level since it was last asked
	counts   bool   // it was told so ever: nothing is committed without it
	idle     int    // ticks without progress
	over     bool   // of a joiner: too much was kept for it; nothing more is until it says what it has
}

// leadWindows is how many windows of entries an eager head applies ahead of what is
// committed. Its log has them all: without a bound, a follower that is slower than the
// workers would let it grow for ever.
const leadWindows = 4

// backlogWindows is how many windows of entries are kept for a joiner that is not level
// yet. If it takes that long over its snapshot, it gets another one.
const backlogWindows = 64

// Patience is how many ticks a successor that owes an answer is given before it is
// greeted again: streams lose nothing, but a sender may have found one full.
const Patience = 20

// New makes a replica that has all entries up to applied, given and committed, as a
// snapshot or an agreed beginning says; none is in its log. size tells an entry's
// bytes; about window bytes are sent ahead of what a successor has acknowledged.
func New[E any](applied uint64, size func(E) int, window int) *Replica[E] {
	r := &Replica[E]{size: size, window: window, has: true, succ: link{to: Successor}, join: link{to: Joiner}}
	r.reset(applied)
	return r
}

// NewJoiner makes a replica that has nothing.
func NewJoiner[E any](size func(E) int, window int) *Replica[E] {
	r := New(0, size, window)
	r.has = false
	return r
}

func (r *Replica[E]) reset(pos uint64) {
	clear(r.log)
	r.log, r.free, r.first = r.log[:0], 0, pos+1
	r.end, r.committed, r.given, r.told, r.begun, r.open, r.kept = pos, pos, pos, pos, pos, 0, 0
}

// End returns the position of the last entry received.
func (r *Replica[E]) End() uint64 { return r.end }

// Committed returns the position up to which entries are known to be committed.
func (r *Replica[E]) Committed() uint64 { return r.committed }

// Applied returns the position of the last entry that was given to be applied.
func (r *Replica[E]) Applied() uint64 { return r.given }

// Has reports whether the replica has a state: a joiner has none before its snapshot.
func (r *Replica[E]) Has() bool { return r.has }

// Joined reports whether a joining replica has come up with the tail, which counts it
// from now on: it may be the tail of the next epoch.
func (r *Replica[E]) Joined() bool { return r.joined }

// Serving reports whether all that the replica had when the epoch began is
// committed, and applied. (Of an eager head, it says that its successor was heard.)
func (r *Replica[E]) Serving() bool {
	return r.has && !r.cfg.Joining && r.given >= r.begun && (!r.succ.there || r.succ.known || r.cfg.Periodic)
}

// Shared reports whether nothing would be lost with this replica: its successors have all
// that it has.
func (r *Replica[E]) Shared() bool {
	if r.cfg.Periodic && r.succ.there {
		return r.succ.known && !r.succ.copying && r.succ.has == r.end
	}
	return r.committed == r.end
}

// Configure tells the replica how the chain is now. What changes the members comes
// with a higher epoch; a lower one is ignored.
func (r *Replica[E]) Configure(c Config) {
	if c.Epoch < r.cfg.Epoch {
		return
	}
	old := r.cfg
	r.cfg = c
	if c.Epoch > old.Epoch {
		r.begun, r.joined = r.end, false
		r.count()
		r.renew(&r.succ, !c.Tail && !c.Joining)
	}
	if c.Epoch > old.Epoch || c.Joiner != old.Joiner {
		r.renew(&r.join, c.Tail && c.Joiner != 0)
	}
	if c.Epoch > old.Epoch && c.Epoch == r.asked && !c.Head {
		r.have()
	}
	r.advance()
}

// renew forgets all of a peer, and greets it if there is one.
func (r *Replica[E]) renew(l *link, there bool) {
	r.lent = max(r.lent, l.sent)
	*l = link{to: l.to, there: there}
	r.ready.Snapshot[l.to] = false
	r.greet(l)
}

// Relink says that the connection to a successor or joiner is new: what was sent on
// the old one may be lost. (A predecessor does the greeting itself.)
func (r *Replica[E]) Relink(to Peer) {
	if to == Predecessor {
		return
	}
	l := r.link(to)
	if l.copying { // in vain
		l.copying, l.known, r.ready.Snapshot[to] = false, false, false
	}
	r.greet(l)
}

// link returns what is known of a successor or joiner.
func (r *Replica[E]) link(to Peer) *link {
	if to == Joiner {
		return &r.join
	}
	return &r.succ
}

// greet asks a peer what it has.
func (r *Replica[E]) greet(l *link) {
	if !l.there || !r.has {
		return
	}
	l.greeted, l.levelled, l.idle = false, false, 0
	r.send(l.to, Message[E]{Kind: Follow, Pos: r.end})
}

func (r *Replica[E]) send(to Peer, m Message[E]) {
	m.Epoch = r.cfg.Epoch
	if to == Joiner || r.cfg.Joining {
		m.Joiner = r.cfg.Joiner
	}
	r.ready.Messages = append(r.ready.Messages, Outgoing[E]{to, m})
}

// have tells the predecessor what is here, and what is committed.
func (r *Replica[E]) have() {
	r.send(Predecessor, Message[E]{Kind: Have, Pos: r.end, None: !r.has})
	if r.has {
		r.send(Predecessor, Message[E]{Kind: Committed, Pos: r.committed})
	}
}

// Append takes an entry in, at the head, and returns its position.
func (r *Replica[E]) Append(e E) uint64 {
	r.add(e)
	r.advance()
	return r.end
}

func (r *Replica[E]) add(e E) {
	r.log = append(r.log, e)
	r.kept += r.size(e)
	if r.end++; r.leads() {
		r.open += r.size(e)
	}
}

// leads reports whether the replica applies what is not committed.
func (r *Replica[E]) leads() bool { return r.cfg.Eager && r.cfg.Head }

// count counts the bytes that are not committed.
func (r *Replica[E]) count() {
	r.open = 0
	for p := r.committed + 1; p <= r.end && r.leads(); p++ {
		r.open += r.size(r.at(p))
	}
}

// commit notes that all up to pos is committed.
func (r *Replica[E]) commit(pos uint64) {
	for ; r.committed < pos; r.committed++ {
		if r.leads() {
			r.open -= r.size(r.at(r.committed + 1))
		}
	}
}

// Step takes a message of a peer.
func (r *Replica[E]) Step(from Peer, m Message[E]) {
	if from == Predecessor {
		r.fromPredecessor(&m)
		r.advance()
		return
	}
	l := r.link(from)
	if m.Epoch != r.cfg.Epoch && !r.weak.Chain.Epochs || !l.there || from == Joiner && m.Joiner != r.cfg.Joiner {
		return
	}
	switch m.Kind {
	case Have:
		r.hears(l, &m)
	case Committed:
		pos := min(m.Pos, r.end)
		r.acknowledged(l, pos)
		if from == Successor && pos > r.committed {
			r.commit(pos)
			l.idle = 0
		}
	}
	r.advance()
}

func (r *Replica[E]) fromPredecessor(m *Message[E]) {
	if m.Kind == Follow && m.Epoch > r.cfg.Epoch {
		r.asked = max(r.asked, m.Epoch) // it knows a newer view: answered when that is here, too
	}
	if m.Epoch != r.cfg.Epoch && !r.weak.Chain.Epochs || r.cfg.Head {
		return
	}
	if r.cfg.Joining && m.Joiner != r.cfg.Joiner && m.Kind != Entry {
		return // for one that joined, here, before
	}
	switch m.Kind {
	case Follow:
		r.have()
	case Entry:
		if r.has && (m.Pos == r.end+1 || r.weak.Chain.Positions) {
			r.add(m.Entry)
		}
	case Level:
		r.joined = r.joined || r.cfg.Joining && r.has && r.end >= m.Pos
	}
}

// hears takes a peer's word for what it has.
func (r *Replica[E]) hears(l *link, m *Message[E]) {
	switch {
	case l.copying && (m.None || m.Pos < l.has): // said before the snapshot came
	case m.None || m.Pos+1 < r.first:
		r.lacks(l)
	default:
		if m.Pos < l.sent { // what follows is sent again
			r.lent = max(r.lent, l.sent)
		}
		l.known, l.greeted, l.copying, l.over, l.idle, l.bytes = true, true, false, false, 0, 0
		l.sent = min(m.Pos, r.end)
		l.has = l.sent
	}
}

// lacks takes a peer's word that it has less than the log reaches back to.
func (r *Replica[E]) lacks(l *link) {
	switch {
	case l.copying: // it has its snapshot, but too much came meanwhile; a periodic member waits for the next Sync
		l.copying, l.known = false, false
	case l.counts || l.known && l.to == Successor && !r.cfg.Periodic:
		// Nothing is forgotten before it has it, so this is an old word, that was on its
		// way on another connection.
	default:
		l.greeted, l.copying, l.known, l.over, l.has = false, true, true, false, r.given // what follows is kept for it
		r.ready.Snapshot[l.to] = true
	}
}

// acknowledged notes that a peer has all up to pos.
func (r *Replica[E]) acknowledged(l *link, pos uint64) {
	if !l.greeted || pos <= l.has {
		return
	}
	for p := l.has + 1; p <= min(pos, l.sent); p++ {
		l.bytes -= r.size(r.at(p))
	}
	l.has, l.sent, l.idle = pos, max(l.sent, pos), 0
}

func (r *Replica[E]) at(pos uint64) E { return r.log[r.free+int(pos-r.first)] }

// Tick lets time pass: a peer that owes an answer for long is greeted again, and a
// joiner that owes none is told again that it is level.
func (r *Replica[E]) Tick() {
	if !r.cfg.Periodic && r.succ.idles(r.committed == r.end) {
		r.greet(&r.succ)
	}
	if r.join.idles(false) {
		if r.join.levelled && r.join.has == r.end {
			r.join.levelled = false
		} else {
			r.greet(&r.join)
		}
	}
	r.advance()
}

// idles reports whether a peer has owed an answer for long enough.
func (l *link) idles(settled bool) bool {
	if !l.there || l.greeted && settled {
		l.idle = 0
		return false
	}
	l.idle++
	return l.idle%Patience == 0
}

// advance commits, gives what may be applied, sends what may be sent, and forgets
// what nobody needs any more.
func (r *Replica[E]) advance() {
	if !r.has {
		return
	}
	if !r.succ.there || r.cfg.Periodic { // the tail; of a joiner: all that it is sent is committed
		all := r.end
		if r.join.counts {
			all = min(all, r.join.has)
		}
		r.commit(all)
	}
	last := r.committed
	if r.leads() && r.open <= leadWindows*r.window {
		last = r.end
	}
	keep := r.needed(last)
	for ; r.given < last; r.given++ {
		pos := r.given + 1
		r.ready.Apply = append(r.ready.Apply, Given[E]{r.at(pos), pos, pos >= keep || pos <= r.lent})
	}
	if !r.cfg.Periodic {
		r.feed(&r.succ)
	}
	r.feed(&r.join)
	if r.committed > r.told && !r.cfg.Head {
		r.send(Predecessor, Message[E]{Kind: Committed, Pos: r.committed})
	}
	r.told = r.committed
	if l := &r.join; l.there && !l.counts && r.kept > backlogWindows*r.window {
		l.over, l.known, l.greeted = true, false, false // where it copies, it goes on, in vain
	}
	r.forget(r.needed(r.given))
}

// needed returns the first position that the log must keep, when all up to given
// are applied.
func (r *Replica[E]) needed(given uint64) uint64 {
	least := min(given, r.committed)
	for _, l := range []*link{&r.succ, &r.join} {
		switch {
		case !l.there || l.over || l.to == Successor && r.cfg.Periodic:
		case l.known:
			least = min(least, l.has)
		default: // it has not said yet what it has
			least = min(least, r.first-1)
		}
	}
	return least + 1
}

// forget drops the entries before the position upTo.
func (r *Replica[E]) forget(upTo uint64) {
	if upTo <= r.first {
		return
	}
	n := r.free + int(upTo-r.first)
	for _, e := range r.log[r.free:n] {
		r.kept -= r.size(e)
	}
	clear(r.log[r.free:n])
	r.free, r.first = n, upTo
	if 2*r.free < len(r.log) {
		return
	}
	left := copy(r.log, r.log[r.free:]) // to the front, so that the buffer does not wander
	clear(r.log[left:])
	r.log, r.free = r.log[:left], 0
	if left == 0 && cap(r.log) > 1<<12 { // it was a joiner's backlog
		r.log = nil
	}
}

// feed sends a peer what it has not been sent, a window ahead of what it has.
func (r *Replica[E]) feed(l *link) {
	if !l.there || !l.greeted {
		return
	}
	for l.sent < r.end {
		e := r.at(l.sent + 1)
		n := r.size(e)
		if l.bytes > 0 && l.bytes+n > r.window {
			break // those of many shards share a connection
		}
		l.sent++
		l.bytes += n
		r.send(l.to, Message[E]{Kind: Entry, Pos: l.sent, Entry: e})
	}
	if l.to == Joiner && l.sent == r.end && !l.levelled {
		l.levelled, l.counts = true, !r.weak.Chain.Levels
		r.send(Joiner, Message[E]{Kind: Level, Pos: r.end})
	}
}

// Ready returns what to do, once, and begins collecting anew.
func (r *Replica[E]) Ready() Ready[E] {
	out := r.ready
	if n := len(out.Apply); n < r.applies { // the last Ready's entries are done with
		clear(out.Apply[n:r.applies])
	}
	if n := len(out.Messages); n < r.messages {
		clear(out.Messages[n:r.messages])
	}
	r.applies, r.messages = len(out.Apply), len(out.Messages)
	r.ready = Ready[E]{Apply: out.Apply[:0], Messages: out.Messages[:0]}
	return out
}
