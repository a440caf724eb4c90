package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// slotMembership decides which slots participate in the job, and for which clocks.
type slotMembership struct {
	record   *JobRecord
	job      *jobState
	rec      *recorder
	queue    *dirtySet
	grace    int64  // ticks after which a slot without a process is suspended; 0: never
	received cursor // over the shards: which have the newest membership intervals
}

// intervalsReceived reports whether every shard has the newest membership intervals.
func (ro *slotMembership) intervalsReceived() bool {
	return ro.received.All(len(ro.record.View.Shards), func(i int) bool {
		st := ro.job.shardStatus(i)
		return st != nil && st.Ready && st.Roster >= ro.record.View.Roster
	})
}

// applyChange chooses a change's clock and applies it, while every slot is paused at or before clock working.
func (ro *slotMembership) applyChange(ch Change, working perdure.Clock) {
	v, at := &ro.record.View, ch.At
	if at == 0 {
		at = working + 1
	}
	if at <= working || v.End > 0 && at >= v.End {
		ro.rec.event("scaled", "", "the membership change is dropped: clock %d is over, or the job ends before it", at)
		return
	}
	ch.Leave = slices.DeleteFunc(slices.Clone(ch.Leave), func(slot perdure.Slot) bool {
		if !ro.record.Abandoned(int(slot)) {
			return false
		}
		ro.suspend(int(slot), fmt.Sprintf("worker:%d has no process and leaves", slot))
		return true // no process would work on its clocks until then
	})
	if ch.Add+len(ch.Leave)+len(ch.Rejoin) == 0 {
		return
	}
	next := ro.record.Clone()
	joined, err := next.Apply(ch, at)
	if err != nil { // Scale has already tried it
		ro.rec.event("scaled", "", "the membership change is dropped: %v", err)
		return
	}
	ro.endAtOwnClocks(&ch, &next.View)
	for range len(next.Slots) - len(ro.job.slots) {
		ro.rec.addSlot()
	}
	set(ro.rec, &ro.record.Slots, next.Slots)
	set(ro.rec, &ro.record.PastClocks, next.PastClocks)
	set(ro.rec, &v.Roster, next.View.Roster)
	for i := range v.Slots {
		ro.rec.changeSlot(i, next.View.Slots[i])
	}
	for _, i := range joined {
		ro.rec.setClock(i, at-1)
		ro.job.slots[i] = observed{lastClock: at - 1, fenced: ro.job.slots[i].fenced}
		ro.rec.event("scaled", target(Worker, i), "worker:%d joins; it takes part from clock %d on", i, at)
	}
	for _, slot := range ch.Leave {
		at = v.Slots[slot].Until
		ro.rec.event("scaled", target(Worker, int(slot)), "worker:%d leaves; clock %d is its last", slot, at-1)
	}
}

// endAtOwnClocks moves the ends of slots that leave as soon as possible to the clocks that they have begun, under a
// model that lets slots be far apart: a slow one would otherwise have to catch up with the fastest first.
func (ro *slotMembership) endAtOwnClocks(ch *Change, v *protocol.View) {
	for _, slot := range ch.Leave {
		sl, all := &v.Slots[slot], v.Intervals()
		clock, _ := ro.job.pauseClock(int(slot))
		all[slot].Until = min(sl.Until, max(clock, sl.From)+1)
		if ch.At == 0 && ro.record.Job.Unbounded(v.Tables) && checkCovered(all, ro.job.minClock(), false) == nil {
			sl.Interval = all[slot]
		}
	}
}

// suspendVacant suspends slots that have been without a process for too long.
func (ro *slotMembership) suspendVacant() {
	for i := range ro.job.slots {
		if ro.grace > 0 && ro.record.Abandoned(i) && ro.job.detector.Silence(&ro.job.slots[i].liveness) > ro.grace {
			ro.suspend(i, fmt.Sprintf("no process has taken over worker:%d", i))
		}
	}
}

// suspend ends a slot's participation at the clock that every shard has of it. Shards that have later clocks keep them.
func (ro *slotMembership) suspend(slot int, why string) {
	v := &ro.record.View
	now := intervalUpTo(v.Slots[slot].From, v.Slots[slot].Start)
	all := v.Intervals()
	if all[slot] = now; checkCovered(all, ro.job.minClock(), false) != nil {
		return
	}
	set(ro.rec, &v.Roster, v.Roster+1)
	next := v.Slots[slot]
	next.Interval, next.Left = now, true
	set(ro.rec, &ro.record.Slots[slot].Suspended, true)
	ro.rec.changeSlot(slot, next)
	ro.job.recovering[Worker].Remove(slot)
	ro.rec.event("scaled", target(Worker, slot), "%s; the others continue without it from clock %d on", why, now.Until)
}

// cutSuspended moves the ends of suspended slots back to the cut of a rollback, because no process will redo their
// later clocks.
func (ro *slotMembership) cutSuspended() {
	v := &ro.record.View
	shorter := false
	for i := range v.Slots {
		at := v.CutClocks.Of(perdure.Slot(i), v.Cut)
		if sl := &v.Slots[i]; ro.record.Slots[i].Suspended && sl.Until > max(at, sl.From) {
			next := *sl
			next.Interval, shorter = intervalUpTo(sl.From, at), true
			ro.rec.changeSlot(i, next)
		}
	}
	if shorter {
		set(ro.rec, &v.Roster, v.Roster+1)
	}
}

// releaseLeft releases the slots that have finished their last clock, once no rollback can return to before it. The
// next process with such a slot number starts with all earlier clocks counted as done.
func (ro *slotMembership) releaseLeft() {
	v := &ro.record.View
	for _, i := range ro.queue.Ending.Sorted() {
		sl := &v.Slots[i]
		if !ro.job.intervalDone(i) {
			ro.queue.AwaitingLastClock.Remove(i)
			continue
		}
		saves := ro.job.traits.SavesCuts()
		if saves && ro.record.Saved(i) < sl.Until {
			ro.queue.CutRequesters.Add(i)
			continue
		}
		waits := !saves && ro.record.Slots[i].Process == "" && !ro.lastApplied(i)
		if ro.queue.AwaitingLastClock.Set(i, waits); waits {
			continue
		}
		next := *sl
		next.Left, next.Source = true, 0
		ro.rec.changeSlot(i, next)
		ro.job.recovering[Worker].Remove(i)
		ro.rec.event("left", target(Worker, i), "worker:%d has left at clock %d", i, sl.Until)
	}
}

// lastApplied reports whether all shards have applied the last clock of a slot without a process. Under two-step clocks
// they may still wait for other slots to tick it.
func (ro *slotMembership) lastApplied(slot int) bool {
	v := &ro.record.View
	return !ro.record.TwoStep() || ro.job.slots[slot].last.All(len(v.Shards), func(i int) bool {
		st := ro.job.shardStatus(i)
		return st != nil && st.Ready && st.MinClock >= v.Slots[slot].Until
	})
}
