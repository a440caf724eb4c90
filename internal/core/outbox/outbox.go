// Package outbox keeps the updates that one slot has made until they are safe, and decides what is sent, and sent
// again. It is pure: it takes what the program Incs and what servers have said, and returns what is to be sent.
//
//	Inc ─▶ Deltas ─▶ Fill, Seal ─▶ Update ─▶ Feed or ToLog ─▶ frames
//	                                  │
//	                       kept until it is safe ◀─ Opened, Ack, Logged, See
//
// What always holds:
//
//   - The updates that a Shard keeps are of clocks that follow one another, the oldest first.
//     Each clock is in one of them. No cut, no end of the job and nothing that a shard counts
//     lies between two clocks of one update.
//   - An update is forgotten once it is safe, and not before. When it is safe the recovery
//     strategy says: once all can see it, once the update log has it, or once it is in a
//     checkpoint.
//   - What is safe is given back: its memory serves later updates. An update that may still
//     be queued in some connection is not given back, it is left to the garbage collector.
//   - Bytes are counted as they are kept: Held compares the two.
//
// Nothing here is safe for concurrent use: the caller's lock guards a Box and all that it
// returns. Frames share the memory of the updates that they are of.
package outbox

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/states"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// Limits bound what is kept, in bytes.
type Limits struct {
	Window int64 // of updates that were not acknowledged; Clock waits beyond it
	Retain int64 // of updates that are kept until they are in a checkpoint; likewise
	Outage int64 // of updates for shards that are out; likewise; 0: as the job says
	Spare  int   // of memory that is kept to be used again

	Memory Memory // what is lent lies in; nil: in Go's own

	// For negative controls in tests only.
	Weak weaken.Set
}

// mostShown is how many bytes of updates that are in the update log are kept to be shown
// before Clock waits for servers. For shards that are out Limits.Outage holds.
const mostShown = 256 << 20

// updateCost is about what an update that is queued takes beside its bytes.
const updateCost = 512

// Box is the outbox of one process of a slot. An observer's keeps the clock, and no updates.
type Box struct {
	progress

	limits Limits
	terms  terms
	shards []*Shard
	tables []*Table // by id; nil for those that nobody asked for
	bounds bool     // the model of one of them is vap
	last   bool     // the program has said that no clock follows
	prompt perdure.Clock

	saving saving

	unacked   int64     // bytes of whole updates that were not acknowledged yet
	retained  int64     // bytes of updates that were, and are kept until they are in a checkpoint
	crowded   bool      // those are so large that a cut is wanted
	spareLeft int       // bytes that may still be kept to be used again
	weak      []float32 // scratch: deltas as servers apply them
	log       logFrames // scratch: what ToLog returns

	Counters Counters
}

// Counters are what a Box has done since it was made.
type Counters struct {
	Updates int64 // that were made
	Pushed  int64 // bytes of frames that were given out to be sent
	Beyond  int64 // updates that alone exceeded vap's bound
	Resent  int64 // updates that had left, wholly or in part, and were to be sent again
}

// saving is what the program wants saved for the slot's next process.
type saving struct {
	state []byte // nil: nothing
	left  []byte // the newest of it that is in an update
	dirty bool   // the next update carries state
	note  []byte // what tells the shards that state is not on of it, in the next update; nil: nothing
}

// New returns the outbox of a process that has not joined its job yet.
func New(limits Limits) *Box {
	return &Box{
		limits: limits, prompt: -1, spareLeft: limits.Spare,
		terms: terms{slot: perdure.NoSlot, job: &perdure.JobSpec{}}, // a view may come though no welcome was understood
	}
}

// Join says which job it is, and which slot this process speaks for; NoSlot: for none.
func (b *Box) Join(job *perdure.JobSpec, slot perdure.Slot) {
	b.terms.job, b.terms.slot = job, slot
	b.terms.traits, b.terms.cuts = recovery.Of(job.Recovery).Traits(), recovery.ScheduleOf(job.Recovery)
	if b.retains() { // what a cut makes superfluous is for the updates until the next cut
		b.spareLeft = max(b.spareLeft, int(b.limits.Retain))
	}
}

// See takes a newer view. If it is one of the next generation, everything of the abandoned one
// is forgotten, and the clock is Rolled.
func (b *Box) See(v words.View, rolled bool) {
	saved := v.Durable != b.terms.view.Durable
	b.terms.see(v)
	b.end = b.terms.end()
	for len(b.shards) < len(v.Shards) {
		b.shards = append(b.shards, &Shard{box: b, id: perdure.ShardID(len(b.shards))})
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

// roll forgets everything of the abandoned generation. The next one begins at the view's cut.
func (b *Box) roll() {
	begin := b.terms.begin()
	if b.terms.slot >= 0 {
		b.step(roll)
	}
	b.last = false
	for _, s := range b.shards {
		*s = Shard{
			box: b, id: s.id, most: s.most, free: s.free, out: s.out, fed: s.fed, inherited: s.inherited,
			stream: s.stream, holding: s.holding,
			counts: words.Counts{Staged: begin, Ticked: begin, Applied: begin, Seen: begin},
		}
	}
	b.unacked, b.retained, b.crowded = 0, 0, false
	b.saving = saving{}
	b.endClock()
}

// Shard returns the outbox's side of a shard of the present view.
func (b *Box) Shard(s perdure.ShardID) *Shard { return b.shards[s] }

// Spans returns, by slot, in which clocks it takes part, as the present view says.
func (b *Box) Spans() []words.Span { return b.terms.spans }

// SaveDue reports whether a checkpoint will be of the end of the present clock, as far as is
// known.
func (b *Box) SaveDue() bool { return b.terms.cuts.Has(b.clock + 1) }

// retains reports whether updates are kept until they are in a checkpoint.
func (b *Box) retains() bool { return b.terms.traits.Retains() && !b.limits.Weak.Retention }

// TwoStep reports whether a clock is first staged on all shards, and then applied.
func (b *Box) TwoStep() bool { return b.terms.twoStep }

// Last says whether the program has done its last clock: nothing is held back any more.
func (b *Box) Last(last bool) { b.last = last }

// IsLast reports what Last has said.
func (b *Box) IsLast() bool { return b.last }

// Prompt says that the program waits until what it has made is applied, and that it will
// most likely wait after the present clock, too.
func (b *Box) Prompt() { b.prompt = b.clock }

// AllApplied reports whether every update that can still count is applied.
func (b *Box) AllApplied() bool {
	goal := b.clock
	if b.end > 0 {
		goal = min(goal, b.end)
	}
	return !slices.ContainsFunc(b.shards, func(s *Shard) bool { return s.counts.Applied < goal })
}

// HasRoom reports whether one more clock's updates may be kept until they are in a
// checkpoint. Where a cut was named that this slot has not come to, they must be: the others
// wait for it.
func (b *Box) HasRoom() bool {
	return b.retained < b.limits.Retain || b.retained == 0 || b.clock < b.terms.view.Named
}

// Within reports whether so little is on its way that a clock may end.
func (b *Box) Within() bool {
	shown, window := int64(0), b.unacked
	for _, s := range b.shards {
		if s.out {
			window -= s.unacked
		} else {
			shown += s.shown
		}
	}
	queued := b.Queued()
	return (window == 0 || window < b.limits.Window) &&
		(queued == 0 || queued < cmp.Or(b.limits.Outage, b.terms.job.QueuedBytes())) && shown < mostShown
}

// Queued returns how many bytes the updates take that are kept for shards that are out.
func (b *Box) Queued() (n int64) {
	for _, s := range b.shards {
		if s.out {
			n += s.Owed() + updateCost*int64(len(s.kept)-s.acked)
		}
	}
	return n
}

// Retained returns how many bytes are kept until they are in a checkpoint, and whether a cut
// is wanted for that.
func (b *Box) Retained() (bytes int64, crowded bool) { return b.retained, b.crowded }

// Crowds reports whether a cut is wanted now and was not when this was last asked, or the
// other way round: one is wanted when half of the memory is used that may be.
func (b *Box) Crowds() (news bool) {
	now := b.retained > b.limits.Retain/2
	news = now != b.crowded
	b.crowded = now
	return news
}

// SaveState gives what the program itself wants saved. It travels with the next update. Where a shard may
// lose it, the others hear of it, too.
func (b *Box) SaveState(state []byte) {
	b.saving.state, b.saving.dirty = state, true
	if b.terms.traits.MayLose() {
		b.saving.note = states.Note(b.clock)
	}
}

// Loaded notes the state that the program goes on with, as it has travelled: this process has no newer one. It
// is sent again where it is lost.
func (b *Box) Loaded(state []byte) {
	if b.saving.state == nil {
		b.saving.state = state
	}
}

// SavedState returns the newest state that is in an update; nil: this process has saved none.
func (b *Box) SavedState() []byte { return b.saving.left }

// Trim lets go of memory that updates needed in a burst, and no more.
func (b *Box) Trim() {
	for _, t := range b.tables {
		if t != nil {
			t.trim()
		}
	}
	for _, s := range b.shards {
		s.free = s.free[:min(len(s.free), mostFreeUpdates)]
		s.most = len(s.kept)
	}
}
