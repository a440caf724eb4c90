package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// With atomic clocks a cut is a cut by slot: it contains the updates of each slot up to another clock, so that no slot
// waits for another. The shards find these clocks themselves. During a hold each shard applies nothing, and reports how
// many clocks of each slot are decided. A clock that is decided on one shard is staged on all, so the highest of these
// counts is a cut that all shards can make. See docs/design/asynchronous.md.

const (
	holdLimitSeconds   = 2  // the longest time that a hold lasts
	holdPause          = 20 // how much longer than a hold that was given up the job waits before the next one
	missedPauseSeconds = 1  // from a hold to the next one if its cut was missed: the disk may be full
)

// cutBySlot takes the next step towards a requested cut by slot: it starts a hold, names the cut when all shards are in
// the hold, or gives the hold up.
func (cu *cuts) cutBySlot() {
	v, since := &cu.record.View, float64(cu.job.tick-cu.heldAt)*cu.job.seconds
	switch {
	case v.Hold == 0:
		soon := cu.job.tick < cu.holdFrom || v.Named > v.Durable && since < missedPauseSeconds
		if cu.record.CutRequested && !soon && cu.mayHold() {
			set(cu.rec, &v.Hold, cu.record.NextRevision())
			cu.heldAt = cu.job.tick
		}
	case !cu.mayHold() || since > holdLimitSeconds:
		cu.endHold()
	default:
		if cu.held.All(len(v.Shards), func(i int) bool {
			st := cu.job.shardStatus(i)
			return st != nil && st.Ready && st.Cuts.Hold == v.Hold && len(st.Cuts.Ticked) == len(v.Slots)
		}) {
			cu.nameBySlot()
		}
	}
}

// endHold gives the current hold up.
func (cu *cuts) endHold() {
	set(cu.rec, &cu.record.View.Hold, 0)
	cu.holdFrom = cu.job.tick + 1 + holdPause*(cu.job.tick-cu.heldAt)
}

// mayHold reports whether a cut by slot can be made now: all shards serve, and have the newest membership and all
// updates that they have ever had, the slots' last clocks are decided, and no earlier cut is still being written. Slots
// may pause, or wait at a tentative end: some wait for the cut because they keep too many updates.
func (cu *cuts) mayHold() bool {
	v, incomplete := &cu.record.View, func(s int) bool { return !cu.job.resendComplete(s) }
	if !cu.record.Placed() || cu.record.KnownRoster < v.Roster || cu.job.unready.Len() > 0 ||
		len(cu.queue.LostShards.All()) > 0 || slices.ContainsFunc(cu.queue.Restored.Sorted(), incomplete) {
		return false
	}
	for i := range v.Slots {
		cu.job.visits.slots++
		if sl := &v.Slots[i]; !sl.Settled && !sl.Left && sl.Incarnation > 0 && !cu.job.isEarly(i) {
			return false
		}
	}
	return v.Named <= v.Durable || cu.notWriting()
}

// notWriting reports whether no shard writes the cut that was named last, so that the next one may follow although this
// one will never be complete.
func (cu *cuts) notWriting() bool {
	v := &cu.record.View
	for i := range v.Shards {
		st := cu.job.shardStatus(i)
		written := func(g protocol.Segment) bool { return g.Cut == v.Named }
		if st == nil || st.Cuts.Named < v.Named || !st.Cuts.Missed && !slices.ContainsFunc(st.Segments, written) {
			return false
		}
	}
	return cu.job.missed()
}

// nameBySlot names the cut that the shards have reported.
func (cu *cuts) nameBySlot() {
	v := &cu.record.View
	clocks := make(protocol.SlotClocks, len(v.Slots))
	for i := range v.Shards {
		for slot, ticked := range cu.job.shardStatus(i).Cuts.Ticked {
			clocks[slot] = max(clocks[slot], ticked)
		}
	}
	number := max(v.MeanClock(func(i perdure.Slot) perdure.Clock { return clocks[i] }), v.Named+1, v.Durable+1)
	set(cu.rec, &v.Hold, 0)
	set(cu.rec, &cu.record.CutRequested, false)
	progress := false
	for i := range v.Slots {
		progress = progress || clocks[i] > v.Slots[i].Clamp(v.Saved(perdure.Slot(i)))
	}
	if !progress {
		cu.nameLast(v.Durable)
		return
	}
	cu.nameLast(number)
	set(cu.rec, &v.Named, number)
	set(cu.rec, &v.NamedClocks, clocks)
	cu.timer.Named(cu.job.tick)
	cu.rec.event("cut", "", "a checkpoint of clock %d is requested (%d to %d by slot)", number, clocks.Least(number),
		clocks.Most(number))
}

// requestLast requests the last cut of a job whose slots have all finished.
func (cu *cuts) requestLast() {
	if v := &cu.record.View; !cu.record.CutRequested && (v.Named <= v.Durable || cu.job.missed()) {
		set(cu.rec, &cu.record.CutRequested, true)
		cu.cutBySlot()
	}
}
