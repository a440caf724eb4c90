// Package outbox keeps the updates of one slot until they are safe, and decides which of them are sent and resent. It
// does no I/O: its inputs are the program's Incs and the messages of servers, and its outputs are the frames to send.
//
//	Inc ─▶ Deltas ─▶ Fill, Seal ─▶ Update ─▶ NextFrames or LogRecords
//	                                  │
//	                       kept until it is safe ◀─ Opened, Ack, RecordLogged, SetView
//
// Invariants:
//
//   - The updates that a Shard keeps are of consecutive clocks, oldest first. Each clock is in one update. A cut, the
//     end of the job, or a count of a shard never lies between two clocks of one update.
//   - An update is dropped once it is safe, and not before. When it is safe depends on the recovery strategy: once all
//     slots can see it, once the update log has it, or once it is in a checkpoint.
//   - The memory of safe updates is reused for later ones. If an update may still be queued in some connection, its
//     memory is left to the garbage collector instead.
//   - The byte counters equal the sizes of the updates that are kept: ByteCounts compares the two.
//
// Nothing here is safe for concurrent use: the caller's lock guards an Outbox and everything that it returns. Frames
// share the memory of their updates.
package outbox

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/slotstate"
)

// Limits bound the memory that an Outbox uses, in bytes.
type Limits struct {
	Window int64 // unacknowledged updates; at the limit, Clock blocks
	Retain int64 // updates kept until they are in a checkpoint; at the limit, Clock blocks
	Outage int64 // updates for unavailable shards; at the limit, Clock blocks; 0: the job's default
	Spare  int   // memory kept for reuse

	Memory Memory // holds lent memory; nil: Go's heap

	// For negative controls in tests only.
	Mutations mutation.Set
}

// maxLoggedBytes is how many bytes of updates may be in the update log but not yet applied before Clock blocks. For
// unavailable shards, Limits.Outage applies instead.
const maxLoggedBytes = 256 << 20

// updateCost is the approximate overhead of a queued update, in bytes.
const updateCost = 512

// Outbox is the outbox of one process of a slot. An observer's Outbox only keeps the clock.
type Outbox struct {
	progress

	limits  Limits
	jobView jobView
	shards  []*Shard
	tables  []*Table // by ID; nil: not used by the program
	ticks   Ticks
	bounds  bool // some table uses vap
	last    bool // the program has announced that no clock follows
	prompt  perdure.Clock

	transitChanges int64 // see TransitChanges

	saving saving

	unacked   int64     // bytes of complete updates that are not acknowledged
	retained  int64     // bytes of acknowledged updates that are kept until they are in a checkpoint
	cutWanted bool      // retained is so large that a cut is wanted
	spareLeft int       // bytes that may still be kept for reuse
	weak      []float32 // scratch: deltas as scaled by servers
	log       logFrames // scratch: the result of LogRecords

	Counters Counters
}

// Counters count what an Outbox has done since it was created.
type Counters struct {
	Updates int64 // updates made
	Pushed  int64 // bytes of frames handed out for sending
	Beyond  int64 // updates that alone exceeded vap's bound
	Resent  int64 // updates that had been sent, completely or in part, and had to be resent
}

// saving is the state that the program saves for the slot's next process.
type saving struct {
	state []byte // nil: none
	left  []byte // the newest state that is in an update
	dirty bool   // the next update carries state
	note  []byte // for the next update: tells the shards without the state about it; nil: nothing
}

// New returns the outbox of a process that has not joined its job yet.
func New(limits Limits) *Outbox {
	b := &Outbox{
		limits: limits, prompt: -1, spareLeft: limits.Spare,
		jobView: jobView{slot: perdure.NoSlot, job: &perdure.JobSpec{}}, // a view may come without a valid welcome
	}
	b.ticks.outbox = b
	return b
}

// Join sets the job and the slot of this process, or NoSlot if it has none.
func (b *Outbox) Join(job *perdure.JobSpec, slot perdure.Slot) {
	b.jobView.job, b.jobView.slot = job, slot
	b.jobView.traits, b.jobView.cuts = recovery.TraitsOf(job), recovery.ScheduleOf(job)
	if b.retains() { // memory released by one cut serves the updates until the next
		b.spareLeft = max(b.spareLeft, int(b.limits.Retain))
	}
}

// SetView handles a newer view. If rolled is set, the view starts a new generation: everything of the old one is
// dropped, and the phase becomes RolledBack.
func (b *Outbox) SetView(v protocol.View, rolled bool) {
	saved := v.Durable != b.jobView.view.Durable
	b.jobView.setView(v)
	b.end = b.jobView.end()
	for len(b.shards) < len(v.Shards) {
		b.shards = append(b.shards, &Shard{outbox: b, id: perdure.ShardID(len(b.shards))})
	}
	if rolled {
		b.roll()
	}
	for _, s := range b.shards {
		if saved {
			s.dropSafe()
		}
	}
}

// roll drops everything of the old generation. The new one starts at the view's cut.
func (b *Outbox) roll() {
	start := b.jobView.begin()
	if b.jobView.slot >= 0 {
		b.step(roll)
	}
	b.last = false
	for _, s := range b.shards {
		*s = Shard{
			outbox: b, id: s.id, maxKept: s.maxKept, free: s.free, unavailable: s.unavailable,
			sentBelow: s.sentBelow, inherited: s.inherited,
			stream: s.stream, holding: s.holding,
			counts: protocol.Counts{Staged: start, Ticked: start, Applied: start, Seen: start},
		}
	}
	b.ticks.Start(start)
	b.unacked, b.retained, b.cutWanted = 0, 0, false
	b.saving = saving{}
	b.endClock()
}

// Shard returns the outbox of a shard of the current view.
func (b *Outbox) Shard(s perdure.ShardID) *Shard { return b.shards[s] }

// Intervals returns by slot the membership interval in the current view.
func (b *Outbox) Intervals() []protocol.Interval { return b.jobView.intervals }

// SaveDue reports whether a checkpoint will contain the end of the current clock, as far as is known.
func (b *Outbox) SaveDue() bool { return b.jobView.cuts.Has(b.clock + 1) }

// retains reports whether updates are kept until they are in a checkpoint.
func (b *Outbox) retains() bool {
	return b.jobView.traits.RetainsUpdates() && !b.limits.Mutations.Retention
}

// Mode returns the mode of the job's clocks.
func (b *Outbox) Mode() perdure.ClockMode { return b.jobView.mode }

// SetLast records whether the program is in its last clock, in which no update is held back.
func (b *Outbox) SetLast(last bool) { b.last = last }

// IsLast returns the value last passed to SetLast.
func (b *Outbox) IsLast() bool { return b.last }

// Prompt records that the program waits until its updates are applied, and will probably wait again after the current
// clock.
func (b *Outbox) Prompt() { b.prompt = b.clock }

// AllApplied reports whether every update that can still count is applied.
func (b *Outbox) AllApplied() bool {
	goal := b.clock
	if b.end > 0 {
		goal = min(goal, b.end)
	}
	return !slices.ContainsFunc(b.shards, func(s *Shard) bool { return s.counts.Applied < goal })
}

// CanRetain reports whether one more clock's updates may be retained until they are in a checkpoint. It must be true
// before a named cut that this slot has not reached, if the other slots wait there.
func (b *Outbox) CanRetain() bool {
	waits := !b.jobView.traits.CutsBySlot && b.clock < b.jobView.view.Named
	return b.retained < b.limits.Retain || b.retained == 0 || waits
}

// WithinLimits reports whether few enough bytes are in transit for a clock to end.
func (b *Outbox) WithinLimits() bool {
	shown, window := int64(0), b.unacked
	for _, s := range b.shards {
		if s.unavailable {
			window -= s.unacked
		} else {
			shown += s.loggedBytes
		}
	}
	queued := b.Queued()
	return (window == 0 || window < b.limits.Window) &&
		(queued == 0 || queued < b.QueueLimit()) && shown < maxLoggedBytes
}

// QueueLimit returns the limit of Queued, at which no further clock ends.
func (b *Outbox) QueueLimit() int64 { return cmp.Or(b.limits.Outage, b.jobView.job.QueuedBytes()) }

// Queued returns the bytes of the updates for unavailable shards.
func (b *Outbox) Queued() (n int64) {
	for _, s := range b.shards {
		if s.unavailable {
			n += s.UnappliedBytes() + updateCost*int64(len(s.kept)-s.acked)
		}
	}
	return n
}

// Retained returns the bytes kept until they are in a checkpoint, and whether a cut is wanted to release them.
func (b *Outbox) Retained() (bytes int64, crowded bool) { return b.retained, b.cutWanted }

// CheckCutWanted checks whether a cut is wanted: whether more than half of the retention limit is used. It reports
// whether the answer has changed since the last call.
func (b *Outbox) CheckCutWanted() (news bool) {
	now := b.retained > b.limits.Retain/2
	news = now != b.cutWanted
	b.cutWanted = now
	return news
}

// SaveState sets the state that the program saves. It is sent with the next update. If a shard may lose it, the other
// shards are also notified of it.
func (b *Outbox) SaveState(state []byte) {
	b.saving.state, b.saving.dirty = state, true
	if b.jobView.traits.MayLoseUpdates() {
		b.saving.note = slotstate.Note(b.clock)
	}
}

// Loaded records the state that the program resumes from, unless this process has saved a newer one. It is resent if a
// shard loses it.
func (b *Outbox) Loaded(state []byte) {
	if b.saving.state == nil {
		b.saving.state = state
	}
}

// SavedState returns the newest state that is in an update, or nil if this process has saved none.
func (b *Outbox) SavedState() []byte { return b.saving.left }

// Trim releases memory that only a burst needed.
func (b *Outbox) Trim() {
	for _, t := range b.tables {
		if t != nil {
			t.trim()
		}
	}
	for _, s := range b.shards {
		s.free = s.free[:min(len(s.free), minFreeUpdates)]
		s.maxKept = len(s.kept)
	}
}
