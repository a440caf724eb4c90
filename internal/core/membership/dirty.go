package membership

import (
	"iter"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// A step of the core visits only what an event may concern, however large the job is. Code that changes a shard, a
// server or a slot marks everything that depends on it in the [dirtySet], and the next step processes what is due.
// Where all slots must have answered, a [cursor] first checks the one that had not; a [clockCounts] knows the smallest
// of all clocks; iterating over a [numberSet] costs only its current size. No type is safe for concurrent use.

// dirtySet is the core's work queue. It is derived from the job record and the observations: any change of these
// touches the shard, server or slot concerned, and each step takes what is due for it.
type dirtySet struct {
	ShardsDirty bool // something happened that may matter to the shards that are due
	Unbalanced  bool // servers may hold unequal numbers of replicas

	Open           numberSet // shards that may not be in their desired state; the others are ready
	Due            numberSet // open shards to check now, because of an event
	AwaitingServer numberSet // open shards that wait for a server to become available
	AwaitingCopy   numberSet // open shards that wait for their turn to be copied from a draining server
	LostShards     numberSet // open shards whose rows no live server has
	Restored       numberSet // restored shards that may still lack resent updates
	AwaitingBase   numberSet // lost shards whose initial applied vector is not known

	Unchecked numberSet // servers whose eligibility must be determined
	Awaited   numberSet // servers that are awaited, as far as checked
	Leaving   numberSet // servers that may be draining

	DirtySlots        numberSet   // slots that may need a decision, or may be settled
	Fencing           []numberSet // by shard: the slots that wait for its report
	Early             numberSet   // slots that wait for the others to reach their first clocks
	Ending            numberSet   // slots that will leave
	AwaitingLastClock numberSet   // ending slots that wait until all shards have applied their last clocks
	CutRequesters     numberSet   // slots that may request a cut
	AwaitingSource    numberSet   // slots whose decisions wait for the reports of other slots' processes
	Copying           numberSet   // slots whose processes may lack the shared state that another one saves for them
}

// newDirtySet returns an empty work queue for a number of shards.
func newDirtySet(shards int) *dirtySet {
	return &dirtySet{ShardsDirty: true, Unbalanced: true, Fencing: make([]numberSet, shards)}
}

// More reports whether work for shards or slots remains.
func (a *dirtySet) More(placed bool) bool { return a.ShardsDirty && placed || a.DirtySlots.Len() > 0 }

// TouchShard marks a shard, and the slots that wait for its report.
func (a *dirtySet) TouchShard(shard int) {
	a.Open.Add(shard)
	a.Due.Add(shard)
	a.MarkAwaitingFence(perdure.ShardID(shard))
	a.ShardsDirty = true
}

// TouchServer marks a server, and the shards that it holds.
func (a *dirtySet) TouchServer(server int, held iter.Seq[int]) {
	for s := range held {
		a.TouchShard(s)
	}
	a.Unchecked.Add(server)
	a.ShardsDirty, a.Unbalanced = true, true
}

// TouchSlot marks a slot if a decision about it is missing or has to be carried out.
func (a *dirtySet) TouchSlot(slot int, sl *protocol.SlotView) {
	if !sl.Settled && (sl.Incarnation > 0 || sl.Decided) {
		a.DirtySlots.Add(slot)
	}
}

// Changed marks a shard whose view has changed.
func (a *dirtySet) Changed(shard int, sv *protocol.ShardView) {
	a.LostShards.Remove(shard)
	a.AwaitingBase.Set(shard, sv.Lost && sv.Base == nil)
	a.Restored.Set(shard, sv.Restored)
	a.TouchShard(shard)
	a.Unbalanced = true
}

// ChangedSlot marks a slot whose view has changed, and all slots that wait for the clocks of others, which this one may
// have reached.
func (a *dirtySet) ChangedSlot(slot int, sl *protocol.SlotView) {
	a.TouchSlot(slot, sl)
	a.Ending.Set(slot, sl.Until > 0 && !sl.Left)
	a.Copying.Set(slot, sl.Source > 0)
	a.MarkEarly(func(int) bool { return true })
}

// MarkEarly marks the early slots for which mayHave returns true: the others may have reached their first clocks.
func (a *dirtySet) MarkEarly(mayHave func(slot int) bool) {
	for _, slot := range a.Early.All() {
		if mayHave(slot) {
			a.DirtySlots.Add(slot)
		}
	}
}

// MarkAwaitingSource marks the slots whose decisions wait for the reports of other slots' processes.
func (a *dirtySet) MarkAwaitingSource() {
	for _, slot := range a.AwaitingSource.All() {
		a.DirtySlots.Add(slot)
	}
	a.AwaitingSource.Clear()
}

// MarkAwaitingFence marks the slots that wait for a report from shard s. It returns false if shard s does not exist.
func (a *dirtySet) MarkAwaitingFence(s perdure.ShardID) bool {
	if s < 0 || int(s) >= len(a.Fencing) {
		return false
	}
	for _, slot := range a.Fencing[s].All() {
		a.DirtySlots.Add(slot)
	}
	return true
}

// ShardReported processes a server's report on a shard. It marks the shard if the report may change its chain,
// otherwise the slots that wait for it. It returns false if the report changes nothing that matters.
func (a *dirtySet) ShardReported(s perdure.ShardID, before *protocol.ObservedShard, now *protocol.ShardDelta,
	end perdure.Clock,
) bool {
	switch {
	case before == nil || now == nil || chainStatusChanged(&before.ShardStatus, &now.ShardStatus):
		if s >= 0 && int(s) < len(a.Fencing) {
			a.TouchShard(int(s))
		}
	case slotStatusChanged(before, now, end) || a.AwaitingLastClock.Len() > 0 && before.MinClock != now.MinClock:
		a.MarkAwaitingFence(s)
	default:
		return false
	}
	return true
}

// NextSlots removes and returns the slots to check now.
func (a *dirtySet) NextSlots() []int {
	slots := a.DirtySlots.Sorted()
	a.DirtySlots.Clear()
	return slots
}

// NextShards removes and returns the shards that are due now.
func (a *dirtySet) NextShards() []int {
	shards := a.Due.Sorted()
	a.Due.Clear()
	return shards
}

// chainStatusChanged reports whether a replica's status changed in a way that may change its chain.
func chainStatusChanged(before, now *protocol.ShardStatus) bool {
	return before.Generation != now.Generation || before.Epoch != now.Epoch || before.Since != now.Since ||
		before.Ready != now.Ready || before.Joined != now.Joined || before.Yielded != now.Yielded ||
		before.ResendComplete != now.ResendComplete || len(before.Applied) != len(now.Applied)
}

// slotStatusChanged reports whether a replica's status changed in a way that may matter to slots, cuts or the job's
// end.
func slotStatusChanged(before *protocol.ObservedShard, now *protocol.ShardDelta, end perdure.Clock) bool {
	return len(now.Fences) > 0 || len(now.Unfenced) > 0 ||
		!slices.EqualFunc(before.Segments, now.Segments, sameSegment) ||
		end > 0 && now.MinClock >= end && before.MinClock != now.MinClock ||
		before.Roster != now.Roster || before.Cuts.Named != now.Cuts.Named ||
		before.Cuts.Missed != now.Cuts.Missed || before.Cuts.Hold != now.Cuts.Hold
}

// sameSegment reports whether two values describe the same segment.
func sameSegment(a, b protocol.Segment) bool { return a.File == b.File && a.CRC == b.CRC }
