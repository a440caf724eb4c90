package membership

import (
	"iter"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// A step of the core visits only what an event may concern, however large the job is. Whoever changes a shard, a server
// or a slot marks what depends on it in the [dirtySet], and the next step takes what is due from there. Where all slots
// must have answered, a [cursor] first asks the one that had not; a [clockCensus] knows the least of all clocks; a
// [numberSet] costs what it holds. No type is safe for concurrent use.

// dirtySet is what is to be looked at. All of it follows from the facts and the observations:
// whoever changes one of these touches the shard, server or slot that it is of, and each step
// takes what is due for it.
type dirtySet struct {
	Stirred bool // something happened that may matter to the shards that are due
	Uneven  bool // servers may hold unequal numbers of replicas

	Open    numberSet // shards that are, perhaps, not as they should be; the others are ready
	Due     numberSet // of those: to be looked at now, something happened that may matter to them
	Wanting numberSet // of the open ones: those that wait until there is a server for them
	Turns   numberSet // likewise: those that wait for their turn to be copied from a server that is to end
	Orphans numberSet // likewise: shards that nobody has the rows of
	Mending numberSet // shards that were restored, of which it is not known whether all was sent to them again
	Unbased numberSet // lost shards of which it is not known what they begin with

	Unjudged numberSet // servers of which it is to be found out if they are eligible
	Away     numberSet // servers that are awaited, of those that are judged
	Leaving  numberSet // servers that are, perhaps, to end

	Woken   numberSet   // slots of which something is, perhaps, to be decided, or settled
	Fencing []numberSet // by shard: the slots that wait for its word
	Early   numberSet   // slots that wait for the others to come to their first clocks
	Ending  numberSet   // slots that are to leave
	Last    numberSet   // of those: the ones that wait until all shards have applied their last clocks
	Calling numberSet   // slots that ask, perhaps, for a cut
}

// newDirtySet returns an agenda of a number of shards, with nothing on it.
func newDirtySet(shards int) *dirtySet {
	return &dirtySet{Stirred: true, Uneven: true, Fencing: make([]numberSet, shards)}
}

// More reports whether there is something left to do for shards or slots.
func (a *dirtySet) More(placed bool) bool { return a.Stirred && placed || a.Woken.Len() > 0 }

// TouchShard has a shard looked at, and the slots that wait for its word.
func (a *dirtySet) TouchShard(shard int) {
	a.Open.Add(shard)
	a.Due.Add(shard)
	a.Wake(perdure.ShardID(shard))
	a.Stirred = true
}

// TouchServer has a server looked at, and the shards that it holds.
func (a *dirtySet) TouchServer(server int, held iter.Seq[int]) {
	for s := range held {
		a.TouchShard(s)
	}
	a.Unjudged.Add(server)
	a.Stirred, a.Uneven = true, true
}

// TouchSlot has a slot looked at if something is to be decided about it, or carried out.
func (a *dirtySet) TouchSlot(slot int, sl *words.SlotView) {
	if !sl.Settled && (sl.Incarnation > 0 || sl.Decided) {
		a.Woken.Add(slot)
	}
}

// Changed has a shard looked at that has another view.
func (a *dirtySet) Changed(shard int, sv *words.ShardView) {
	a.Orphans.Remove(shard)
	a.Unbased.Put(shard, sv.Lost && sv.Base == nil)
	a.Mending.Put(shard, sv.Restored)
	a.TouchShard(shard)
	a.Uneven = true
}

// ChangedSlot has a slot looked at that has another view, and the slots that wait for the
// others' clocks: this one may have come to them.
func (a *dirtySet) ChangedSlot(slot int, sl *words.SlotView) {
	a.TouchSlot(slot, sl)
	a.Ending.Put(slot, sl.Until > 0 && !sl.Left)
	a.WakeEarly(func(int) bool { return true })
}

// WakeEarly has those slots looked at that wait for the others to come to their first
// clocks, and for which one of these may have.
func (a *dirtySet) WakeEarly(mayHave func(slot int) bool) {
	for _, slot := range a.Early.All() {
		if mayHave(slot) {
			a.Woken.Add(slot)
		}
	}
}

// Wake has the slots looked at that wait for the word of a shard of which a server
// speaks; false if there is no such shard.
func (a *dirtySet) Wake(s perdure.ShardID) bool {
	if s < 0 || int(s) >= len(a.Fencing) {
		return false
	}
	for _, slot := range a.Fencing[s].All() {
		a.Woken.Add(slot)
	}
	return true
}

// Hears notes what a server says of a shard. The shard is looked at where that may change its
// chain, else the slots that wait for its word. False: nothing of it may matter.
func (a *dirtySet) Hears(s perdure.ShardID, before *words.ShardWord, now *words.ShardDelta, end perdure.Clock) bool {
	switch {
	case before == nil || now == nil || stirs(&before.ShardStatus, &now.ShardStatus):
		if s >= 0 && int(s) < len(a.Fencing) {
			a.TouchShard(int(s))
		}
	case counts(before, now, end) || a.Last.Len() > 0 && before.MinClock != now.MinClock:
		a.Wake(s)
	default:
		return false
	}
	return true
}

// NextSlots returns the slots that are to be looked at now, and takes them off.
func (a *dirtySet) NextSlots() []int {
	slots := a.Woken.Sorted()
	a.Woken.Clear()
	return slots
}

// NextShards returns the shards that are due now, and takes them off.
func (a *dirtySet) NextShards() []int {
	shards := a.Due.Sorted()
	a.Due.Clear()
	return shards
}

// stirs reports whether a replica says something that may change its chain.
func stirs(before, now *words.ShardStatus) bool {
	return before.Generation != now.Generation || before.Epoch != now.Epoch || before.Since != now.Since ||
		before.Ready != now.Ready || before.Joined != now.Joined || before.Yielded != now.Yielded ||
		before.Whole != now.Whole || len(before.Applied) != len(now.Applied)
}

// counts reports whether a replica says something that may matter to slots, cuts or
// the job's end.
func counts(before *words.ShardWord, now *words.ShardDelta, end perdure.Clock) bool {
	return len(now.Fences) > 0 || len(now.Unfenced) > 0 ||
		!slices.EqualFunc(before.Segments, now.Segments, sameSegment) ||
		end > 0 && now.MinClock >= end && before.MinClock != now.MinClock ||
		before.Roster != now.Roster || before.Named != now.Named || before.Missed != now.Missed
}

// sameSegment reports whether two segments of a shard are one.
func sameSegment(a, b words.Segment) bool { return a.File == b.File && a.CRC == b.CRC }
