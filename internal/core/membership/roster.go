package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// roster decides which slots participate in the job, and for which clocks.
type roster struct {
	facts *Facts
	job   *job
	rec   *record
	queue *dirtySet
	grace int64  // ticks after which a slot without a process is suspended; 0: never
	told  cursor // over the shards: which have the newest membership intervals
}

// rosterKnown reports whether every shard has the newest membership intervals.
func (ro *roster) rosterKnown() bool {
	return ro.told.All(len(ro.facts.View.Shards), func(i int) bool {
		st := ro.job.shardStatus(i)
		return st != nil && st.Ready && st.Roster >= ro.facts.View.Roster
	})
}

// changeNow chooses a change's clock and applies it, while all slots pause at clock working or below.
func (ro *roster) changeNow(ch Change, working perdure.Clock) {
	v, at := &ro.facts.View, ch.At
	if at == 0 {
		at = working + 1
	}
	if at <= working || v.End > 0 && at >= v.End {
		ro.rec.event("scaled", "", "the change of members is dropped: clock %d is over, or the job ends before it", at)
		return
	}
	ch.Leave = slices.DeleteFunc(slices.Clone(ch.Leave), func(slot perdure.Slot) bool {
		if !ro.facts.Abandoned(int(slot)) {
			return false
		}
		ro.suspend(int(slot), fmt.Sprintf("worker:%d has no process and leaves", slot))
		return true // no process would work on its clocks until then
	})
	if ch.Add+len(ch.Leave)+len(ch.Again) == 0 {
		return
	}
	next := ro.facts.Clone()
	joined, err := next.Apply(ch, at)
	if err != nil { // Scale has already tried it
		ro.rec.event("scaled", "", "the change of members is dropped: %v", err)
		return
	}
	for range len(next.Slots) - len(ro.job.slots) {
		ro.rec.addSlot()
	}
	set(ro.rec, &ro.facts.Slots, next.Slots)
	set(ro.rec, &ro.facts.PastClocks, next.PastClocks)
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
		ro.rec.event("scaled", target(Worker, int(slot)), "worker:%d leaves; clock %d is its last", slot, at-1)
	}
}

// suspendVacant suspends slots that have been without a process for too long.
func (ro *roster) suspendVacant() {
	for i := range ro.job.slots {
		if ro.grace > 0 && ro.facts.Abandoned(i) && ro.job.watch.Silence(&ro.job.slots[i].ear) > ro.grace {
			ro.suspend(i, fmt.Sprintf("no process has taken over worker:%d", i))
		}
	}
}

// suspend ends a slot's participation at the clock that every shard has of it. Shards that have later clocks keep them.
func (ro *roster) suspend(slot int, why string) {
	v := &ro.facts.View
	now := spanUpTo(v.Slots[slot].From, v.Slots[slot].Start)
	all := v.Spans()
	if all[slot] = now; someoneWorks(all, ro.job.minClock()) != nil {
		return
	}
	set(ro.rec, &v.Roster, v.Roster+1)
	next := v.Slots[slot]
	next.Span, next.Left = now, true
	set(ro.rec, &ro.facts.Slots[slot].Suspended, true)
	ro.rec.changeSlot(slot, next)
	ro.job.recovering[Worker].Remove(slot)
	ro.rec.event("scaled", target(Worker, slot), "%s; the others continue without it from clock %d on", why, now.Until)
}

// cutSuspended moves the ends of suspended slots back to the cut of a rollback, because no process will redo their
// later clocks.
func (ro *roster) cutSuspended() {
	v := &ro.facts.View
	shorter := false
	for i := range v.Slots {
		if sl := &v.Slots[i]; ro.facts.Slots[i].Suspended && sl.Until > max(v.Cut, sl.From) {
			next := *sl
			next.Span, shorter = spanUpTo(sl.From, v.Cut), true
			ro.rec.changeSlot(i, next)
		}
	}
	if shorter {
		set(ro.rec, &v.Roster, v.Roster+1)
	}
}

// leave releases the slots that have finished their last clock, once no rollback can return to before it. The next
// process with such a slot number starts with all earlier clocks counted as done.
func (ro *roster) leave() {
	v := &ro.facts.View
	for _, i := range ro.queue.Ending.Sorted() {
		sl := &v.Slots[i]
		if !ro.job.spanDone(i) {
			ro.queue.Last.Remove(i)
			continue
		}
		saves := ro.job.traits.Saves()
		if saves && ro.facts.Saved(i) < sl.Until {
			ro.queue.Calling.Add(i)
			continue
		}
		waits := !saves && ro.facts.Slots[i].Process == "" && !ro.lastApplied(i)
		if ro.queue.Last.Put(i, waits); waits {
			continue
		}
		next := *sl
		next.Left = true
		ro.rec.changeSlot(i, next)
		ro.job.recovering[Worker].Remove(i)
		ro.rec.event("left", target(Worker, i), "worker:%d has left at clock %d", i, sl.Until)
	}
}

// lastApplied reports whether all shards have applied the last clock of a slot without a process. Under two-step clocks
// they may still wait for other slots to tick it.
func (ro *roster) lastApplied(slot int) bool {
	v := &ro.facts.View
	return !ro.facts.TwoStep() || ro.job.slots[slot].last.All(len(v.Shards), func(i int) bool {
		st := ro.job.shardStatus(i)
		return st != nil && st.Ready && st.MinClock >= v.Slots[slot].Until
	})
}
