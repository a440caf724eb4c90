// Package chain implements chain replication (van Renesse and Schneider, OSDI 2004) for the log of one shard, as a
// state machine.
//
// The log is a sequence of entries with positions 1, 2, …, which continue over all epochs. The head appends entries.
// Every other member receives them in order from its predecessor and forwards them. An entry is committed once the tail
// has it; commit positions travel back from the tail to the head. Every member applies an entry only after it is
// committed. So what a member shows is in the log of all members, and no later failure can revoke it.
//
// A [Replica] is one member's part. The caller passes in the chain's configuration ([Replica.Configure]), messages and
// new entries ([Replica.Step], [Replica.Append]), and the passage of time ([Replica.Tick]). [Replica.Ready] returns the
// entries to apply and the messages to send. A Replica starts no goroutines, reads no clock and does no I/O.
//
// Invariants:
//   - The log of a member is a prefix of its predecessor's.
//   - The committed position is at most the end of every member's log.
//   - Entries are applied in order, each once, and only after they are committed. An eager head may apply every entry
//     that is in its log.
//   - Messages of another epoch change nothing.
//
// A joiner copies the state from the tail, and is not needed for commitment until it has caught up. From then on the
// tail treats it as a successor: an entry is committed only when the joiner also has it. So a joiner that reports that
// it has joined may become the tail of the next epoch, no matter what the old tail commits before it learns of that
// epoch.
//
// Messages may be lost or duplicated, and may arrive after those of a newer connection. Messages that arrive on the
// same connection arrive in order. Snapshots may use a separate connection: a snapshot is accepted only in the epoch in
// which it was sent, and only if [Replica.Wants] allows it.
package chain

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
)

// Peer is the receiver or sender of a message, as seen by one member.
type Peer int

// The peers of a member.
const (
	Predecessor Peer = iota
	Successor
	Joiner // copies from the tail; not a member yet
)

// Kind is the kind of a message.
type Kind int

// The kinds of messages.
const (
	Follow    Kind = iota // to the successor or joiner: starts the epoch, and asks which entries it has
	Have                  // to the predecessor: the sender has all entries up to Pos, or no state if None is set
	Entry                 // to the successor or joiner: the entry at Pos
	Committed             // to the predecessor: all entries up to Pos are committed; from a joiner: it has them
	Level                 // to the joiner: it has been sent all entries up to Pos, and counts from now on
)

// Message is a message between members. E is the type of an entry's content.
type Message[E any] struct {
	Kind  Kind
	Epoch perdure.Epoch
	Pos   uint64
	None  bool // Have: the sender needs a snapshot
	// Joiner names the joiner that sends or receives the message; 0: both are members. It may be omitted if Kind is
	// Entry.
	Joiner uint64
	Entry  E
}

// Outgoing is a message and its receiver.
type Outgoing[E any] struct {
	To Peer
	Message[E]
}

// Given is an entry to apply.
type Given[E any] struct {
	Entry E
	Pos   uint64
	// Kept means that the receiver must not modify or reuse the entry. It stays in the log and may be sent again, or a
	// connection still has a copy that will not be acknowledged.
	Kept bool
}

// Ready contains the entries to apply, the messages to send and the snapshots to take, in this order. The slices are
// valid until the next call of the Replica, which reuses them. An entry of Apply that is not Kept may also be in
// Messages if the caller did not call Ready after every other call.
type Ready[E any] struct {
	Apply    []Given[E]
	Messages []Outgoing[E]
	// Snapshot reports for each peer whether it needs a snapshot, because the log no longer has the entries that it
	// lacks. The snapshot must contain the applied state as of position Applied(). After receiving it, the peer answers
	// with Have.
	Snapshot [Joiner + 1]bool
}

// Config is the configuration of the chain, as seen by one member.
type Config struct {
	Epoch   perdure.Epoch
	Head    bool // the member has no predecessor
	Tail    bool // the member has no successor
	Joining bool // not a member yet: copies from the tail
	// Joiner names the joiner that copies from this member, the tail; 0: none. In a joiner's own configuration it is
	// the joiner's name. A joiner that starts over without its former state gets a new name.
	Joiner uint64
	// Eager makes the head apply entries immediately, before other members have them, as long as the uncommitted
	// entries fill no more than a few windows.
	Eager bool
	// Periodic members keep no log. Their successors receive snapshots whenever Sync is called. Periodic requires
	// Eager.
	Periodic bool
}

// Replica is one member's part of a chain. See the package comment. It is not safe for concurrent use.
type Replica[E any] struct {
	cfg    Config
	size   func(E) int
	window int
	weak   weaken.Set

	log       []E    // free slots for reuse, followed by the entries from first on
	free      int    // number of free slots
	first     uint64 // position of log[free]; the log is empty where first > end
	end       uint64 // position of the last entry
	committed uint64
	given     uint64        // position of the last entry passed to Apply
	begun     uint64        // end when the epoch began
	has       bool          // whether there is a state; false for a joiner without a snapshot
	asked     perdure.Epoch // the highest epoch in which a predecessor sent Follow before this member had its view
	joined    bool
	reported  uint64 // the committed position last sent to the predecessor
	open      int    // bytes of uncommitted entries; eager head only
	kept      int    // bytes of the entries in the log
	lent      uint64 // entries up to here may be in transit more often than they are acknowledged

	succ, join        link
	ready             Ready[E]
	applies, messages int // lengths in the last Ready
}

// link is the state of the connection to a successor or joiner.
type link struct {
	to       Peer
	there    bool
	known    bool   // has is valid: all entries after it are kept
	greeted  bool   // has answered the last Follow
	sent     uint64 // the last entry sent
	has      uint64 // the last entry that it reports, or that its snapshot will contain
	bytes    int    // of entries sent and not acknowledged
	copying  bool   // a snapshot is being sent
	levelled bool   // Level was sent since the last Follow
	counts   bool   // Level was sent at some time: nothing is committed without this joiner
	idle     int    // ticks without progress
	over     bool   // joiner only: its backlog was too large, so nothing is kept for it until its next Have
}

// leadWindows is how many windows of uncommitted entries an eager head applies. They stay in its log. Without a bound,
// the log would grow without limit when a follower is slower than the workers.
const leadWindows = 4

// backlogWindows is how many windows of entries are kept for a joiner that has not caught up. If copying its snapshot
// takes longer, it gets another snapshot.
const backlogWindows = 64

// Patience is the number of ticks after which a successor that has not answered is sent another Follow. Streams lose
// nothing, but a sender may have found a stream full.
const Patience = 20

// New returns a replica whose entries up to applied are applied and committed, according to a snapshot or an agreed
// initial state. Its log is empty. size returns the size of an entry in bytes. The replica sends about window bytes
// ahead of what a successor has acknowledged.
func New[E any](applied uint64, size func(E) int, window int) *Replica[E] {
	r := &Replica[E]{size: size, window: window, has: true, succ: link{to: Successor}, join: link{to: Joiner}}
	r.reset(applied)
	return r
}

// NewJoiner returns a replica without any state.
func NewJoiner[E any](size func(E) int, window int) *Replica[E] {
	r := New(0, size, window)
	r.has = false
	return r
}

func (r *Replica[E]) reset(pos uint64) {
	clear(r.log)
	r.log, r.free, r.first = r.log[:0], 0, pos+1
	r.end, r.committed, r.given, r.reported, r.begun, r.open, r.kept = pos, pos, pos, pos, pos, 0, 0
}

// End returns the position of the last entry received.
func (r *Replica[E]) End() uint64 { return r.end }

// Committed returns the last position that is known to be committed.
func (r *Replica[E]) Committed() uint64 { return r.committed }

// Applied returns the position of the last entry passed to Apply.
func (r *Replica[E]) Applied() uint64 { return r.given }

// Has reports whether the replica has a state. A joiner has none before its snapshot.
func (r *Replica[E]) Has() bool { return r.has }

// Joined reports whether a joiner has caught up with the tail, which needs it for commitment from now on. It may become
// the tail of the next epoch.
func (r *Replica[E]) Joined() bool { return r.joined }

// Serving reports whether everything that the replica had when the epoch began is committed and applied. For an eager
// head, it reports whether the successor has answered.
func (r *Replica[E]) Serving() bool {
	return r.has && !r.cfg.Joining && r.given >= r.begun && (!r.succ.there || r.succ.known || r.cfg.Periodic)
}

// Shared reports whether this replica's loss would lose no entries, because its successors have all of them.
func (r *Replica[E]) Shared() bool {
	if r.cfg.Periodic && r.succ.there {
		return r.succ.known && !r.succ.copying && r.succ.has == r.end
	}
	return r.committed == r.end
}

// Configure sets the configuration of the chain. A change of the members must have a higher epoch; lower epochs are
// ignored.
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

// renew resets the link to a peer, and sends Follow if there is one.
func (r *Replica[E]) renew(l *link, there bool) {
	r.lent = max(r.lent, l.sent)
	*l = link{to: l.to, there: there}
	r.ready.Snapshot[l.to] = false
	r.greet(l)
}

// Relink records that the connection to a successor or joiner was replaced, so messages on the old one may be lost. For
// a predecessor it does nothing, because the predecessor sends Follow.
func (r *Replica[E]) Relink(to Peer) {
	if to == Predecessor {
		return
	}
	l := r.link(to)
	if l.copying { // the copy is useless
		l.copying, l.known, r.ready.Snapshot[to] = false, false, false
	}
	r.greet(l)
}

// link returns the link to a successor or joiner.
func (r *Replica[E]) link(to Peer) *link {
	if to == Joiner {
		return &r.join
	}
	return &r.succ
}

// greet asks a peer which entries it has.
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

// have reports to the predecessor which entries are here, and which are committed.
func (r *Replica[E]) have() {
	r.send(Predecessor, Message[E]{Kind: Have, Pos: r.end, None: !r.has})
	if r.has {
		r.send(Predecessor, Message[E]{Kind: Committed, Pos: r.committed})
	}
}

// Append adds an entry at the head, and returns its position.
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

// leads reports whether the replica applies uncommitted entries.
func (r *Replica[E]) leads() bool { return r.cfg.Eager && r.cfg.Head }

// count recomputes the bytes of uncommitted entries.
func (r *Replica[E]) count() {
	r.open = 0
	for p := r.committed + 1; p <= r.end && r.leads(); p++ {
		r.open += r.size(r.at(p))
	}
}

// commit records that all entries up to pos are committed.
func (r *Replica[E]) commit(pos uint64) {
	for ; r.committed < pos; r.committed++ {
		if r.leads() {
			r.open -= r.size(r.at(r.committed + 1))
		}
	}
}

// Step handles a message from a peer.
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
		r.handleHave(l, &m)
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
		r.asked = max(r.asked, m.Epoch) // the sender knows a newer view: answer once it is here
	}
	if m.Epoch != r.cfg.Epoch && !r.weak.Chain.Epochs || r.cfg.Head {
		return
	}
	if r.cfg.Joining && m.Joiner != r.cfg.Joiner && m.Kind != Entry {
		return // for an earlier joiner at this server
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

// handleHave handles a peer's Have.
func (r *Replica[E]) handleHave(l *link, m *Message[E]) {
	switch {
	case l.copying && (m.None || m.Pos < l.has): // sent before the snapshot arrived
	case m.None || m.Pos+1 < r.first:
		r.offerSnapshot(l)
	default:
		if m.Pos < l.sent { // the following entries are sent again
			r.lent = max(r.lent, l.sent)
		}
		l.known, l.greeted, l.copying, l.over, l.idle, l.bytes = true, true, false, false, 0, 0
		l.sent = min(m.Pos, r.end)
		l.has = l.sent
	}
}

// offerSnapshot handles a Have of a peer whose missing entries are no longer all in the log.
func (r *Replica[E]) offerSnapshot(l *link) {
	switch {
	case l.copying: // its snapshot arrived, but the backlog became too large; a periodic member waits for the next Sync
		l.copying, l.known = false, false
	case l.counts || l.known && l.to == Successor && !r.cfg.Periodic:
		// Nothing is forgotten before this peer has it, so the Have is an old one that was in transit on another
		// connection.
	default:
		// Keep the entries after the snapshot for it.
		l.greeted, l.copying, l.known, l.over, l.has = false, true, true, false, r.given
		r.ready.Snapshot[l.to] = true
	}
}

// acknowledged records that a peer has all entries up to pos.
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

// Tick advances time by one tick. A peer that has not answered for Patience ticks is sent another Follow. A joiner that
// has acknowledged all entries is sent Level again.
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

// idles reports whether a peer has not answered for long enough.
func (l *link) idles(settled bool) bool {
	if !l.there || l.greeted && settled {
		l.idle = 0
		return false
	}
	l.idle++
	return l.idle%Patience == 0
}

// advance commits entries, passes on those that may be applied, sends what may be sent, and drops entries that are no
// longer needed.
func (r *Replica[E]) advance() {
	if !r.has {
		return
	}
	if !r.succ.there || r.cfg.Periodic { // the tail; a joiner is sent only committed entries
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
	if r.committed > r.reported && !r.cfg.Head {
		r.send(Predecessor, Message[E]{Kind: Committed, Pos: r.committed})
	}
	r.reported = r.committed
	if l := &r.join; l.there && !l.counts && r.kept > backlogWindows*r.window {
		l.over, l.known, l.greeted = true, false, false // a copy in progress continues, but is useless
	}
	r.forget(r.needed(r.given))
}

// needed returns the first position that the log must keep when all entries up to given are applied.
func (r *Replica[E]) needed(given uint64) uint64 {
	least := min(given, r.committed)
	for _, l := range []*link{&r.succ, &r.join} {
		switch {
		case !l.there || l.over || l.to == Successor && r.cfg.Periodic:
		case l.known:
			least = min(least, l.has)
		default: // it has not answered yet
			least = min(least, r.first-1)
		}
	}
	return least + 1
}

// forget drops the entries before position upTo.
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
	left := copy(r.log, r.log[r.free:]) // move to the front, so that the buffer does not grow
	clear(r.log[left:])
	r.log, r.free = r.log[:left], 0
	if left == 0 && cap(r.log) > 1<<12 { // it held a joiner's backlog
		r.log = nil
	}
}

// feed sends a peer the entries that it has not been sent, up to a window ahead of its acknowledgements.
func (r *Replica[E]) feed(l *link) {
	if !l.there || !l.greeted {
		return
	}
	for l.sent < r.end {
		e := r.at(l.sent + 1)
		n := r.size(e)
		if l.bytes > 0 && l.bytes+n > r.window {
			break // connections are shared by many shards
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

// Ready returns the collected actions, once, and starts a new collection.
func (r *Replica[E]) Ready() Ready[E] {
	out := r.ready
	if n := len(out.Apply); n < r.applies { // the caller has finished with the last Ready's entries
		clear(out.Apply[n:r.applies])
	}
	if n := len(out.Messages); n < r.messages {
		clear(out.Messages[n:r.messages])
	}
	r.applies, r.messages = len(out.Apply), len(out.Messages)
	r.ready = Ready[E]{Apply: out.Apply[:0], Messages: out.Messages[:0]}
	return out
}
