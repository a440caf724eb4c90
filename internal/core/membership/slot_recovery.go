package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// slotRecovery decides how slots recover from the deaths of their processes.
type slotRecovery struct {
	record   *JobRecord
	job      *jobState
	rec      *recorder
	queue    *dirtySet
	fenceBuf []protocol.Fence // buffer for fences, by shard
}

// decide takes the next step for every slot that is awake: it decides the slot's start clock, and later records that
// every shard has carried the decision out. It returns why the job must roll back, or "".
func (fa *slotRecovery) decide() (rollBack string) {
	for _, slot := range fa.queue.Copying.Sorted() {
		if why := fa.checkSource(slot); why != "" {
			return why
		}
	}
	for _, slot := range fa.queue.NextSlots() {
		fa.job.visits.slots++
		sl := fa.record.View.Slots[slot]
		switch {
		case sl.Settled || sl.Incarnation == 0 && !sl.Decided:
		case sl.Decided:
			fa.settle(slot)
		default:
			if why, goesOn := fa.decideSlot(slot); !goesOn {
				return why
			}
		}
	}
	return ""
}

// decideSlot decides the last clock of a dead slot: see DecideStart. If a shard has lost a staged update that is
// needed, the job rolls back, or, if the strategy may lose rows, the shard counts the update as lost. goesOn reports
// whether the job continues normally; if not, rollBack says why it must roll back, if that is so.
func (fa *slotRecovery) decideSlot(slot int) (rollBack string, goesOn bool) {
	fences := fa.fences(slot, func(*protocol.Fence) bool { return true })
	if fences == nil {
		return "", true
	}
	p := &fa.record.Slots[slot]
	ticks := fa.record.Job.ClockMode(fa.record.View.Tables).Ticks()
	start, torn := DecideStart(fences, ticks && !fa.job.mutations.Staging, p.LatestStart, p.UnknownShards)
	if torn {
		why := "slot %d died during clock %d, and a shard lost the slot's update of that clock"
		switch action := fa.job.strategy.OnTornClock(); action.Kind {
		case recovery.RollBack:
			return fmt.Sprintf(why, slot, start-1), false
		case recovery.Fail:
			fa.rec.fail(why+": %s", slot, start-1, action.Why)
			return "", false
		}
	}
	next, cuts := fa.record.View.Slots[slot], recovery.ScheduleOf(&fa.record.Job)
	cuts.Named = fa.record.View.Named
	over := next.Until > 0 && start >= next.Until // it has done its last clock
	known := over || start <= max(fa.record.View.Cut, next.From) || cuts.Has(start)
	if !known && fa.record.SavesAtCuts(slot) && !fa.job.complete { // all of its state
		var why string
		if next.Source, why = fa.chooseSource(slot, start, false); next.Source == 0 {
			return why, why == ""
		}
	}
	next.Decided, next.Start = true, start
	fa.rec.changeSlot(slot, next)
	most := start
	for i := range fences {
		most = max(most, fences[i].Counts.Applied)
	}
	fa.recordFormer(slot, most)
	fa.countLost(slot, start, fences)
	if last := fa.job.slots[slot].lastClock; next.Incarnation > 1 {
		fa.record.ClocksRedone += int64(max(0, last+1-start))
	}
	fa.rec.setClock(slot, start)
	return "", true
}

// chooseSource chooses the process that saves the shared state of clock start for another slot's process: for the next
// one of a dead slot, or for one that waits for it, such as the first one of a slot that joins. It returns 1 + the slot
// of the source. It returns 0, and why the job must roll back, if none has that state any more. why is "" if that is
// not known yet and the decision must wait.
//
// A process has the shared state of a clock from the mark at its start to the end of its last wait. The clock cannot
// end without the slot. So every living process has the state or is about to get there, unless the shards have lost
// updates that had counted.
func (fa *slotRecovery) chooseSource(slot int, start perdure.Clock, waits bool) (source int32, why string) {
	v := &fa.record.View
	ends := v.End > 0 && start >= v.End
	switch {
	case waits && ends: // it needs no copy any more
		return 0, ""
	case !waits && (ends || !fa.record.Slots[slot].SavesOwn): // ends: the others may be gone
		return 0, fmt.Sprintf("worker:%d saved its state only at checkpoints", slot)
	}
	unsure := false
	for i := range v.Slots {
		o := &fa.job.slots[i]
		late := o.worker != nil && o.worker.Mark > start
		if i == slot || late {
			continue
		}
		if !fa.mayBeSource(i, start) {
			unsure = unsure || waits && fa.mayBecomeSource(i, start)
			continue
		}
		if o.worker != nil && o.worker.Mark > 0 && !o.liveness.IsSuspect() {
			fa.rec.event("copying", target(Worker, slot),
				"worker:%d starts at clock %d with the weights of worker:%d", slot, start, i)
			return int32(i) + 1, ""
		}
		unsure = unsure || o.worker == nil || o.liveness.IsSuspect() || waits && fa.mayBecomeSource(i, start)
	}
	if unsure {
		fa.queue.AwaitingSource.Add(slot)
		return 0, ""
	}
	unable := false
	for i := range fa.job.slots {
		w := fa.job.slots[i].worker
		unable = unable || waits && w != nil && w.Passed && w.Mark == 0
	}
	if unable {
		fa.rec.fail("worker:%d needs the weights of clock %d, but the other workers cannot reach the job's store to "+
			"save a copy: set a store that all machines reach", slot, start)
		return 0, ""
	}
	stays := func(s protocol.SlotView) bool { return s.From < start && s.Has(start) }
	if waits && !slices.ContainsFunc(v.Slots, stays) {
		fa.rec.fail("worker:%d needs the weights of clock %d, but no worker takes part in this clock and the one "+
			"before: add workers before the others leave", slot, start)
		return 0, ""
	}
	return 0, fmt.Sprintf("no process has the shared state of clock %d for worker:%d", start, slot)
}

// mayBeSource reports whether a slot's process can save its shared state of a clock for another one, as far as known.
func (fa *slotRecovery) mayBeSource(slot int, clock perdure.Clock) bool {
	p, sl, o := &fa.record.Slots[slot], &fa.record.View.Slots[slot], &fa.job.slots[slot]
	if p.Process == "" || o.gone || !sl.Settled || !sl.Has(clock) {
		return false
	}
	return o.worker == nil || o.worker.Generation == fa.record.View.Generation && !o.worker.Passed
}

// mayBecomeSource reports whether a slot without a source will have the shared state of a clock without the help of
// others: its process, or its next one, loads the state of a checkpoint, or the job rolls back. A process that starts
// later than the clock first waits for the clock's end.
func (fa *slotRecovery) mayBecomeSource(slot int, clock perdure.Clock) bool {
	sl, w := &fa.record.View.Slots[slot], fa.job.slots[slot].worker
	waits := w != nil && w.Generation == fa.record.View.Generation && (w.NeedsCopy || w.Passed || w.Mark > 0)
	later := sl.Decided && sl.Start > clock
	return sl.Has(clock) && sl.From < clock && sl.Source == 0 && !waits && !later
}

// checkSource chooses a source for a slot whose process still lacks the shared state, if it has none that lives. It
// returns why the job must roll back, or "".
func (fa *slotRecovery) checkSource(slot int) (rollBack string) {
	next, o := fa.record.View.Slots[slot], &fa.job.slots[slot]
	w := o.worker
	reports := w != nil && !o.gone && w.Generation == fa.record.View.Generation
	waits := reports && w.NeedsCopy
	switch {
	case reports && w.Mark > 0 || next.Source == 0 && !waits:
		next.Source = 0
		fa.queue.Copying.Remove(slot)
	case fa.job.complete || next.Source > 0 && fa.mayBeSource(int(next.Source)-1, next.Start):
		return ""
	default:
		var source int32
		if source, rollBack = fa.chooseSource(slot, next.Start, waits); source == 0 {
			return rollBack
		}
		next.Source = source
	}
	fa.rec.changeSlot(slot, next)
	return ""
}

// countLost counts the updates of a slot below its start that shards lack.
func (fa *slotRecovery) countLost(slot int, start perdure.Clock, fences []protocol.Fence) {
	ledger := &fa.record.lostUpdates
	if fa.job.traits.Partial {
		fa.record.Slots[slot].RecordStart(start)
		if !fa.job.mutations.Counting {
			fa.rec.lost(slot, ledger.CountDecided(slot, start, fences))
		}
	} else if fa.record.Job.ClockMode(fa.record.View.Tables).Ticks() {
		ledger.CountTorn(start, fences)
	}
}

// settle records that every shard has carried a decision out. A slot that joins is settled only after the others have
// reached the clock before its first.
func (fa *slotRecovery) settle(slot int) {
	if fa.job.isEarly(slot) {
		fa.queue.Early.Add(slot)
		return
	}
	fa.queue.Early.Remove(slot)
	if fa.fences(slot, func(f *protocol.Fence) bool { return f.Carried }) == nil {
		return
	}
	next := fa.record.View.Slots[slot]
	next.Settled = true
	fa.rec.changeSlot(slot, next)
	fa.job.detector.RestartSilence(&fa.job.slots[slot].liveness) // from now on its process must send
}

// fences returns every shard's fence of a slot, in a shared buffer. It returns nil unless all shards have reported
// fences for which good returns true; the slot then waits for a shard that has not.
func (fa *slotRecovery) fences(slot int, good func(f *protocol.Fence) bool) []protocol.Fence {
	n, at := len(fa.record.View.Shards), &fa.job.slots[slot].fenced
	if fa.fenceBuf == nil {
		fa.fenceBuf = make([]protocol.Fence, n)
	}
	fa.queue.Fencing[*at%cursor(n)].Remove(slot)
	if !at.All(n, func(i int) bool {
		f, sent := fa.job.fence(i, slot)
		fa.fenceBuf[i] = f
		return sent && good(&f)
	}) {
		fa.queue.Fencing[*at].Add(slot)
		return nil
	}
	return fa.fenceBuf // complete, because All has just visited every shard
}

// recordFormer records the clock below which a slot's former processes made updates, once it is known.
func (fa *slotRecovery) recordFormer(slot int, upTo perdure.Clock) {
	// The slot made no updates below first in this membership interval.
	p, first := &fa.record.Slots[slot], fa.record.View.Slots[slot].From
	if first < upTo && p.FormerBelow < upTo {
		set(fa.rec, &p.FormerBelow, upTo)
	}
	if !fa.job.traits.RetainsUpdates() {
		return
	}
	if p.UnretainedBelow == unknown || first < upTo && p.UnretainedBelow < upTo {
		set(fa.rec, &p.UnretainedBelow, upTo)
	}
	fa.queue.CutRequesters.Add(slot)
}
