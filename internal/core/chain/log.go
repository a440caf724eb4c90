// Package chain implements chain replication (van Renesse and Schneider, OSDI 2004) for the log of one shard, as a
// state machine.
//
// The log is a sequence of entries with positions 1, 2, …, which continue over all epochs. The head appends entries.
// Every other member receives them in order from its predecessor and forwards them. An entry is committed once the tail
// has it; commit positions travel back from the tail to the head. Every member applies an entry only after it is
// committed. So everything that a member shows is in the log of all members, and no later failure can revoke it.
//
// A [Log] is one member's part. The caller passes in the chain's configuration ([Log.Configure]), messages and new
// entries ([Log.Step], [Log.Append]), and the passage of time ([Log.Tick]). [Log.Ready] returns the entries to apply
// and the messages to send. The exchange with each
// neighbor is a small state machine (progress).
//
// A [Link] connects a shard's replica to its log and to the neighbors of the shard's chain. It converts the log's
// messages to frames and back, knows the content and the size of an entry, and decides which messages may wait to be
// sent together with others. It identifies neighbors by their role, and the server owns the connections.
//
// Neither type starts goroutines, reads a clock or does I/O. Neither is safe for concurrent use: the server's lock of
// the shard guards both.
//
// Invariants of a log:
//   - The log of a member is a prefix of its predecessor's.
//   - The committed position is at most the end of every member's log.
//   - Entries are applied in order, each once, and only after they are committed. An eager head may apply every entry
//     that is in its log.
//   - Messages of another epoch change nothing.
//
// Invariants of a link:
//   - The bytes counted for a slot are those of its updates that are in the log and not yet in the replica.
//   - A Committed message is delayed only while no process waits for it. It is sent immediately for a joiner, in answer
//     to a predecessor that asks, and after an entry of the head.
//   - A tick may be delayed only while another slot's tick of the same clock has not been forwarded.
//
// A joiner copies the state from the tail, and is not needed for commitment until it has caught up. From then on the
// tail treats it as a successor: an entry is committed only when the joiner also has it. So a joiner that reports that
// it has joined may become the tail of the next epoch, no matter what the old tail commits before it learns of that
// epoch.
//
// Messages may be lost or duplicated, and may arrive after those of a newer connection. Messages that arrive on the
// same connection arrive in order. Snapshots may use a separate connection: a snapshot is accepted only in the epoch in
// which it was sent, and only if [Log.NeedsSnapshot] allows it.
package chain

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
)

// Neighbor is the receiver or sender of a message, as seen by one member.
type Neighbor int

// The peers of a member.
const (
	Predecessor Neighbor = iota
	Successor
	Joiner // copies from the tail; not a member yet
)

// MessageKind is the kind of a message.
type MessageKind int

// The kinds of messages.
const (
	Follow    MessageKind = iota // to the successor or joiner: starts the epoch, and asks which entries it has
	Have                         // to the predecessor: the sender has all entries up to Pos, or no state if None is set
	Entry                        // to the successor or joiner: the entry at Pos
	Committed                    // to the predecessor: all entries up to Pos are committed; from a joiner: it has them
	Level                        // to the joiner: it has been sent all entries up to Pos, and counts from now on
)

// Message is a message between members. E is the type of an entry's content.
type Message[E any] struct {
	Kind  MessageKind
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
	To Neighbor
	Message[E]
}

// Delivery is an entry to apply.
type Delivery[E any] struct {
	Entry E
	Pos   uint64
	// Retained means that the receiver must not modify or reuse the entry. It stays in the log and may be sent again,
	// or a connection still has a copy that will not be acknowledged.
	Retained bool
}

// Ready contains the entries to apply, the messages to send and the snapshots to take, in this order. The slices are
// valid until the next call of the Log, which reuses them. An entry of Apply that is not Retained may also be in
// Messages if the caller did not call Ready after every other call.
type Ready[E any] struct {
	Apply    []Delivery[E]
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

// Log is one member's part of a chain. See the package comment. It is not safe for concurrent use.
type Log[E any] struct {
	cfg       Config
	size      func(E) int
	window    int
	mutations mutation.Set

	log              []E    // free slots for reuse, followed by the entries from first on
	free             int    // number of free slots
	first            uint64 // position of log[free]; the log is empty where first > end
	end              uint64 // position of the last entry
	committed        uint64
	applied          uint64        // position of the last entry passed to Apply
	epochStart       uint64        // end when the epoch began
	hasState         bool          // whether there is a state; false for a joiner without a snapshot
	followSeen       perdure.Epoch // the highest epoch in which a predecessor sent Follow before its view arrived
	joined           bool
	reported         uint64 // the committed position last sent to the predecessor
	uncommittedBytes int    // bytes of uncommitted entries; eager head only
	logBytes         int    // bytes of the entries in the log
	inTransit        uint64 // entries up to here may be in transit more often than they are acknowledged

	succ, join        progress
	ready             Ready[E]
	applies, messages int // lengths in the last Ready
}

// maxEagerWindows is how many windows of uncommitted entries an eager head applies. They stay in its log. Without a
// bound, the log would grow without limit when a follower is slower than the workers.
const maxEagerWindows = 4

// maxJoinerWindows is how many windows of entries are kept for a joiner that has not caught up. If copying its snapshot
// takes longer, it gets another snapshot.
const maxJoinerWindows = 64

// FollowTicks is the number of ticks after which a successor that has not answered is sent another Follow. Streams lose
// nothing, but a sender may have found a stream full.
const FollowTicks = 20

// New returns a log whose entries up to applied are applied and committed, according to a snapshot or an agreed
// initial state. Its log is empty. size returns the size of an entry in bytes. The log sends about window bytes
// ahead of what a successor has acknowledged.
func New[E any](applied uint64, size func(E) int, window int) *Log[E] {
	r := &Log[E]{size: size, window: window, hasState: true, succ: progress{to: Successor}, join: progress{to: Joiner}}
	r.resetLog(applied)
	return r
}

// NewJoiner returns a log without any state.
func NewJoiner[E any](size func(E) int, window int) *Log[E] {
	r := New(0, size, window)
	r.hasState = false
	return r
}

func (r *Log[E]) resetLog(pos uint64) {
	clear(r.log)
	r.log, r.free, r.first = r.log[:0], 0, pos+1
	r.end, r.committed, r.applied, r.reported, r.epochStart = pos, pos, pos, pos, pos
	r.uncommittedBytes, r.logBytes = 0, 0
}

// End returns the position of the last entry received.
func (r *Log[E]) End() uint64 { return r.end }

// Committed returns the last position that is known to be committed.
func (r *Log[E]) Committed() uint64 { return r.committed }

// Applied returns the position of the last entry passed to Apply.
func (r *Log[E]) Applied() uint64 { return r.applied }

// Joined reports whether a joiner has caught up with the tail, which needs it for commitment from now on. It may become
// the tail of the next epoch.
func (r *Log[E]) Joined() bool { return r.joined }

// Serving reports whether everything that the replica had when the epoch began is committed and applied. For an eager
// head, it reports whether the successor has answered.
func (r *Log[E]) Serving() bool {
	return r.hasState && !r.cfg.Joining && r.applied >= r.epochStart &&
		(!r.succ.exists || r.succ.known() || r.cfg.Periodic)
}

// Replicated reports whether this replica's loss would lose no entries, because its successors have all of them.
func (r *Log[E]) Replicated() bool {
	if r.cfg.Periodic && r.succ.exists {
		return r.succ.known() && !r.succ.copying() && r.succ.has == r.end
	}
	return r.committed == r.end
}

// Configure sets the configuration of the chain. A change of the members must have a higher epoch; lower epochs are
// ignored.
func (r *Log[E]) Configure(c Config) {
	if c.Epoch < r.cfg.Epoch {
		return
	}
	old := r.cfg
	r.cfg = c
	if c.Epoch > old.Epoch {
		r.epochStart, r.joined = r.end, false
		r.countUncommitted()
		r.reset(&r.succ, !c.Tail && !c.Joining)
	}
	if c.Epoch > old.Epoch || c.Joiner != old.Joiner {
		r.reset(&r.join, c.Tail && c.Joiner != 0)
	}
	if c.Epoch > old.Epoch && c.Epoch == r.followSeen && !c.Head {
		r.sendHave()
	}
	r.advance()
}

// reset resets the link to a peer, and sends Follow if there is one.
func (r *Log[E]) reset(l *progress, there bool) {
	r.inTransit = max(r.inTransit, l.sent)
	*l = progress{to: l.to, exists: there}
	r.ready.Snapshot[l.to] = false
	r.sendFollow(l)
}

// Reconnected records that the connection to a successor or joiner was replaced, so messages on the old one may be
// lost. For a predecessor it does nothing, because the predecessor sends Follow.
func (r *Log[E]) Reconnected(to Neighbor) {
	if to == Predecessor {
		return
	}
	l := r.progressOf(to)
	if l.copying() { // the copy is useless
		r.ready.Snapshot[to] = false
	}
	l.on(eventReconnect)
	r.sendFollow(l)
}

// progress returns the link to a successor or joiner.
func (r *Log[E]) progressOf(to Neighbor) *progress {
	if to == Joiner {
		return &r.join
	}
	return &r.succ
}

// sendFollow asks a peer which entries it has.
func (r *Log[E]) sendFollow(l *progress) {
	if !l.exists || !r.hasState {
		return
	}
	l.on(eventFollow)
	l.idle = 0
	r.send(l.to, Message[E]{Kind: Follow, Pos: r.end})
}

func (r *Log[E]) send(to Neighbor, m Message[E]) {
	m.Epoch = r.cfg.Epoch
	if to == Joiner || r.cfg.Joining {
		m.Joiner = r.cfg.Joiner
	}
	r.ready.Messages = append(r.ready.Messages, Outgoing[E]{to, m})
}

// sendHave reports to the predecessor which entries are here, and which are committed.
func (r *Log[E]) sendHave() {
	r.send(Predecessor, Message[E]{Kind: Have, Pos: r.end, None: !r.hasState})
	if r.hasState {
		r.send(Predecessor, Message[E]{Kind: Committed, Pos: r.committed})
	}
}

// Append adds an entry at the head, and returns its position.
func (r *Log[E]) Append(e E) uint64 {
	r.add(e)
	r.advance()
	return r.end
}

func (r *Log[E]) add(e E) {
	r.log = append(r.log, e)
	r.logBytes += r.size(e)
	if r.end++; r.appliesEagerly() {
		r.uncommittedBytes += r.size(e)
	}
}

// appliesEagerly reports whether the replica applies uncommitted entries.
func (r *Log[E]) appliesEagerly() bool { return r.cfg.Eager && r.cfg.Head }

// countUncommitted recomputes the bytes of uncommitted entries.
func (r *Log[E]) countUncommitted() {
	r.uncommittedBytes = 0
	for p := r.committed + 1; p <= r.end && r.appliesEagerly(); p++ {
		r.uncommittedBytes += r.size(r.at(p))
	}
}

// commit records that all entries up to pos are committed.
func (r *Log[E]) commit(pos uint64) {
	for ; r.committed < pos; r.committed++ {
		if r.appliesEagerly() {
			r.uncommittedBytes -= r.size(r.at(r.committed + 1))
		}
	}
}

// Step handles a message from a peer.
func (r *Log[E]) Step(from Neighbor, m Message[E]) {
	if from == Predecessor {
		r.fromPredecessor(&m)
		r.advance()
		return
	}
	l := r.progressOf(from)
	if m.Epoch != r.cfg.Epoch && !r.mutations.Chain.Epochs || !l.exists || from == Joiner && m.Joiner != r.cfg.Joiner {
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

func (r *Log[E]) fromPredecessor(m *Message[E]) {
	if m.Kind == Follow && m.Epoch > r.cfg.Epoch {
		r.followSeen = max(r.followSeen, m.Epoch) // the sender knows a newer view: answer once it is here
	}
	if m.Epoch != r.cfg.Epoch && !r.mutations.Chain.Epochs || r.cfg.Head {
		return
	}
	if r.cfg.Joining && m.Joiner != r.cfg.Joiner && m.Kind != Entry {
		return // for an earlier joiner at this server
	}
	switch m.Kind {
	case Follow:
		r.sendHave()
	case Entry:
		if r.hasState && (m.Pos == r.end+1 || r.mutations.Chain.Positions) {
			r.add(m.Entry)
		}
	case Level:
		r.joined = r.joined || r.cfg.Joining && r.hasState && r.end >= m.Pos
	}
}

// handleHave handles a peer's Have.
func (r *Log[E]) handleHave(l *progress, m *Message[E]) {
	switch {
	case l.copying() && (m.None || m.Pos < l.has): // sent before the snapshot arrived
	case m.None || m.Pos+1 < r.first:
		r.offerSnapshot(l)
	default:
		if m.Pos < l.sent { // the following entries are sent again
			r.inTransit = max(r.inTransit, l.sent)
		}
		l.on(eventHave)
		l.idle, l.inFlight = 0, 0
		l.sent = min(m.Pos, r.end)
		l.has = l.sent
	}
}

// offerSnapshot handles a Have of a peer whose missing entries are no longer all in the log.
func (r *Log[E]) offerSnapshot(l *progress) {
	switch {
	case l.copying(): // a periodic member waits for the next Sync
		l.on(eventBehind)
	case l.required || l.known() && l.to == Successor && !r.cfg.Periodic:
		// Nothing is forgotten before this peer has it, so the Have is an old one that was in transit on another
		// connection.
	default:
		// Keep the entries after the snapshot for it.
		l.on(eventBehind)
		l.has = r.applied
		r.ready.Snapshot[l.to] = true
	}
}

// acknowledged records that a peer has all entries up to pos.
func (r *Log[E]) acknowledged(l *progress, pos uint64) {
	if !l.replicating() || pos <= l.has {
		return
	}
	for p := l.has + 1; p <= min(pos, l.sent); p++ {
		l.inFlight -= r.size(r.at(p))
	}
	l.has, l.sent, l.idle = pos, max(l.sent, pos), 0
}

func (r *Log[E]) at(pos uint64) E { return r.log[r.free+int(pos-r.first)] }

// Tick advances time by one tick. A peer that has not answered for Patience ticks is sent another Follow. A joiner that
// has acknowledged all entries is sent CaughtUp again.
func (r *Log[E]) Tick() {
	if !r.cfg.Periodic && r.succ.idles(r.committed == r.end) {
		r.sendFollow(&r.succ)
	}
	if r.join.idles(false) {
		if r.join.phase == phaseCaughtUp && r.join.has == r.end {
			r.join.on(eventCaughtUpLost)
		} else {
			r.sendFollow(&r.join)
		}
	}
	r.advance()
}

// advance commits entries, passes on those that may be applied, sends what may be sent, and drops entries that
// the log need not keep.
func (r *Log[E]) advance() {
	if !r.hasState {
		return
	}
	if !r.succ.exists || r.cfg.Periodic { // the tail; a joiner is sent only committed entries
		all := r.end
		if r.join.required {
			all = min(all, r.join.has)
		}
		r.commit(all)
	}
	last := r.committed
	if r.appliesEagerly() && r.uncommittedBytes <= maxEagerWindows*r.window {
		last = r.end
	}
	keep := r.firstNeeded(last)
	for ; r.applied < last; r.applied++ {
		pos := r.applied + 1
		r.ready.Apply = append(r.ready.Apply, Delivery[E]{r.at(pos), pos, pos >= keep || pos <= r.inTransit})
	}
	if !r.cfg.Periodic {
		r.sendEntries(&r.succ)
	}
	r.sendEntries(&r.join)
	if r.committed > r.reported && !r.cfg.Head {
		r.send(Predecessor, Message[E]{Kind: Committed, Pos: r.committed})
	}
	r.reported = r.committed
	if l := &r.join; l.exists && !l.required && r.logBytes > maxJoinerWindows*r.window {
		l.on(eventOverflow)
	}
	r.discard(r.firstNeeded(r.applied))
}

// firstNeeded returns the first position that the log must keep when all entries up to given are applied.
func (r *Log[E]) firstNeeded(given uint64) uint64 {
	least := min(given, r.committed)
	for _, l := range []*progress{&r.succ, &r.join} {
		switch {
		case !l.exists || l.overflowed() || l.to == Successor && r.cfg.Periodic:
		case l.known():
			least = min(least, l.has)
		default: // it has not answered yet
			least = min(least, r.first-1)
		}
	}
	return least + 1
}

// discard drops the entries before position upTo.
func (r *Log[E]) discard(upTo uint64) {
	if upTo <= r.first {
		return
	}
	n := r.free + int(upTo-r.first)
	for _, e := range r.log[r.free:n] {
		r.logBytes -= r.size(e)
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

// sendEntries sends a peer the entries that it has not been sent, up to a window ahead of its acknowledgements.
func (r *Log[E]) sendEntries(l *progress) {
	if !l.exists || !l.replicating() {
		return
	}
	for l.sent < r.end {
		e := r.at(l.sent + 1)
		n := r.size(e)
		if l.inFlight > 0 && l.inFlight+n > r.window {
			break // connections are shared by many shards
		}
		l.sent++
		l.inFlight += n
		r.send(l.to, Message[E]{Kind: Entry, Pos: l.sent, Entry: e})
	}
	if l.to == Joiner && l.sent == r.end && l.phase != phaseCaughtUp {
		l.on(eventCaughtUp)
		l.required = !r.mutations.Chain.Levels
		r.send(Joiner, Message[E]{Kind: Level, Pos: r.end})
	}
}

// Ready returns the collected actions, once, and starts a new collection.
func (r *Log[E]) Ready() Ready[E] {
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
