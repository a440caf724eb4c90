package membership

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// Under resend, workers keep their updates until a checkpoint contains them. When a server dies, only its own shards
// restart from the newest cut, and workers resend the later updates. This needs, for every slot, a process that has
// kept them, and no process has those of a dead worker. Therefore the death or departure of a worker triggers a cut
// immediately, at a named clock. Until that cut is durable, the death of a server rolls the whole job back.

// unknown is the Member.UnretainedBelow of a slot whose process has died, until all shards have reported its clocks.
const unknown perdure.Clock = math.MaxInt64

// If the strategy leaves the interval open, there is none in clocks: every cut is named, when the checkpoint timer is
// due or when one is requested.

// cuts names the requested cuts and publishes them.
type cuts struct {
	record *JobRecord
	job    *jobState
	rec    *recorder
	queue  *dirtySet

	timer     recovery.Timer // if the interval between checkpoints is chosen automatically
	durableAt uint64         // the first known revision with the newest cut
	received  cursor         // over the shards: which have received the cut that was named
	held      cursor         // over the shards: which are in the hold
	heldAt    int64          // the tick at which the current hold started
	holdFrom  int64          // the tick from which another hold may start
	written   cursor         // over the shards: which have written a segment
}

// mayNameTimed reports whether the timer may name a cut now: no other cut is in progress, or the current one can no
// longer be completed.
func (cu *cuts) mayNameTimed() bool {
	v, t := &cu.record.View, &cu.job.traits
	if !t.Timed && !t.CutsBySlot || cu.record.Final != nil || v.Pause || cu.record.CutRequested {
		return false
	}
	return (v.Named <= v.Durable || cu.job.missed()) && cu.record.Placed()
}

// requestTimed requests a cut if one is due.
func (cu *cuts) requestTimed() {
	at, every := cu.progress(), cu.record.Job.Recovery.Every
	due := every > 0 && at.Working/every > at.Durable/every // the mean clock has passed a multiple of the interval
	if cu.job.traits.Timed {
		due = cu.timer.Due(cu.record.Saving, at) && cu.record.CutFrom(at.Working) > at.Durable
	}
	if due {
		set(cu.rec, &cu.record.CutRequested, true)
	}
}

// progress returns the job's progress, for the timer.
func (cu *cuts) progress() recovery.JobProgress {
	working, _ := cu.job.highestClocks()
	if v := &cu.record.View; cu.job.traits.CutsBySlot {
		working = v.MeanClock(func(i perdure.Slot) perdure.Clock {
			return max(cu.job.slots[i].lastClock, v.Slots[i].Start, v.StartClock(i))
		})
	}
	return recovery.JobProgress{Tick: cu.job.tick, Working: working, Durable: cu.record.View.Durable}
}

// recordFailure records that a failure made the job restore rows from a checkpoint.
func (cu *cuts) recordFailure() {
	if cu.job.traits.Timed {
		s, sent := cu.timer.Failed(cu.record.Saving, cu.progress(), cu.record.Job.MTBF)
		cu.setInterval(s, sent)
	}
}

// setInterval records the chosen interval, and reports it to users if it has changed.
func (cu *cuts) setInterval(s protocol.Saving, sent string) {
	set(cu.rec, &cu.record.Saving, s)
	if sent != "" {
		cu.rec.event("interval", "", "%s", sent)
	}
}

// measureSave passes the duration of a checkpoint to the timer: that of the slowest shard.
func (cu *cuts) measureSave() {
	if !cu.job.traits.Timed {
		return
	}
	took := 0.0
	for i := range cu.record.View.Shards {
		if st := cu.job.shardStatus(i); st != nil {
			took = max(took, st.SaveSeconds)
		}
	}
	for i := range cu.job.slots { // a program's state may be larger than the tables
		if w := cu.job.slots[i].worker; w != nil {
			took = max(took, w.SaveSeconds)
		}
	}
	s, sent := cu.timer.Saved(cu.record.Saving, cu.progress(), cu.record.Job.MTBF, took)
	cu.setInterval(s, sent)
}

// pauseForCut requests a cut if any slot does. The slots pause so that it can be named, unless it is a cut by slot.
func (cu *cuts) pauseForCut() {
	v := &cu.record.View
	if cu.record.CutRequested || !cu.record.Placed() || v.Named > v.Durable && !cu.job.missed() {
		return
	}
	if cu.record.AwaitsFinal() {
		set(cu.rec, &cu.record.CutRequested, true)
		return
	}
	if !cu.job.traits.RetainsUpdates() && !cu.job.traits.Timed || len(cu.queue.CutRequesters.All()) == 0 {
		return
	}
	working, _ := cu.job.highestClocks()
	at, asked := cu.requestedCut()
	if asked && (cu.job.traits.CutsBySlot || cu.record.CutFrom(max(at, working)) > v.Durable) {
		set(cu.rec, &cu.record.CutRequested, true)
	}
}

// requestedCut reports whether any slot requests a cut, and the clock that the cut must not precede.
func (cu *cuts) requestedCut() (at perdure.Clock, asked bool) {
	for _, i := range cu.queue.CutRequesters.Sorted() {
		need, asks := cu.requestOf(i)
		if !asks {
			cu.queue.CutRequesters.Remove(i)
			continue
		}
		at, asked = max(at, need), true
	}
	return at, asked
}

// requestOf reports whether a slot requests a cut, and the clock that the cut must not precede. It does if the slot is
// about to leave, its process has died, or its process keeps too many updates.
func (cu *cuts) requestOf(slot int) (at perdure.Clock, asks bool) {
	cu.job.visits.slots++
	v, p, sl, o := &cu.record.View, &cu.record.Slots[slot], &cu.record.View.Slots[slot], &cu.job.slots[slot]
	if p.UnretainedBelow > cu.record.Saved(slot) && p.UnretainedBelow != unknown {
		at, asks = p.UnretainedBelow, true
	}
	if cu.queue.Ending.Has(slot) && cu.record.Saved(slot) < sl.Until && cu.job.intervalDone(slot) {
		at, asks = max(at, sl.Until), true
	}
	w := o.worker
	asks = asks || w != nil && !o.gone && w.NeedsCut && w.Generation == v.Generation && w.Revision >= cu.durableAt
	return at, asks
}

// workerDied records that a slot's process is gone, along with all updates that it kept. The strategy decides what that
// means for restored shards that have not been resent everything. It returns why the job must roll back, or "".
func (cu *cuts) workerDied(slot int) (rollBack string) {
	if cu.job.traits.RetainsUpdates() {
		set(cu.rec, &cu.record.Slots[slot].UnretainedBelow, unknown)
	}
	needed := false
	for _, s := range cu.queue.Restored.Sorted() {
		short := !cu.job.resendComplete(s)
		if needed = needed || short; short && cu.job.traits.Partial {
			cu.record.Slots[slot].MarkUnknown(s)
		}
	}
	action := cu.job.strategy.OnWorkerDeath(
		recovery.Death{Slot: slot, Needed: needed, Repeats: cu.record.IsRepeatable()})
	switch {
	case action.Kind == recovery.Fail:
		cu.rec.fail("%s", action.Why)
	case action.Kind == recovery.RollBack && !cu.job.mutations.RollBack:
		return action.Why
	}
	return ""
}

// nameCut names a cut while every slot is paused at or before clock working.
func (cu *cuts) nameCut(working perdure.Clock) {
	set(cu.rec, &cu.record.CutRequested, false)
	stood := working
	if cu.record.SavesAtCuts(AnySlot) {
		working += 2 // no slot has started the clock before the cut, so its program can save state there
	}
	at, asked := cu.requestedCut()
	if cu.record.AwaitsFinal() {
		if v := &cu.record.View; max(at, stood) <= v.Durable || v.End > 0 && v.End <= v.Durable {
			cu.nameLast(v.Durable) // no progress since that cut, or none that the job counts
			return
		}
		asked = true
	}
	asked = asked || cu.job.traits.Timed
	if at = cu.record.CutFrom(max(at, working)); !asked || at <= cu.record.View.Durable {
		return
	}
	cu.nameLast(at)
	set(cu.rec, &cu.record.View.Named, at)
	cu.timer.Named(cu.job.tick)
	cu.rec.event("cut", "", "a checkpoint of clock %d is requested", at)
}

// nameLast records the clock of the last checkpoint.
func (cu *cuts) nameLast(cut perdure.Clock) {
	if cu.record.AwaitsFinal() {
		set(cu.rec, &cu.record.Final, &FinalCheckpoint{Named: true, Cut: cut})
	}
}

// cutKnown reports whether every shard has received the cut that was named last.
func (cu *cuts) cutKnown() bool {
	return cu.received.All(len(cu.record.View.Shards), func(i int) bool {
		st := cu.job.shardStatus(i)
		return st != nil && st.Ready && st.Cuts.Named >= cu.record.View.Named
	})
}

// forgetCuts discards all requests for cuts in a rollback: the clocks whose updates no process has kept are all redone.
func (cu *cuts) forgetCuts() {
	set(cu.rec, &cu.record.CutRequested, false)
	set(cu.rec, &cu.record.View.Named, 0)
	set(cu.rec, &cu.record.View.NamedClocks, nil)
	set(cu.rec, &cu.record.View.Hold, 0)
	set(cu.rec, &cu.record.KnownCut, 0)
	if cu.record.Final != nil {
		set(cu.rec, &cu.record.Final, &FinalCheckpoint{}) // along with its cut
	}
	for i := range cu.record.Slots {
		set(cu.rec, &cu.record.Slots[i].UnretainedBelow, 0)
		set(cu.rec, &cu.record.Slots[i].FormerBelow, 0)
		cu.record.Slots[i].RecordStart(0)
	}
	for s := range cu.record.View.Shards {
		cu.record.lostUpdates.RevertShard(s)
	}
	cu.queue.CutRequesters.Clear()
	for _, s := range cu.queue.Restored.Sorted() {
		next := cu.record.View.Shards[s]
		next.Restored = false
		cu.rec.changeShard(s, next)
	}
}

// collectCut finds the newest cut that every shard has written and requests its publication. Only one is published at a
// time.
func (cu *cuts) collectCut() {
	v := &cu.record.View
	if !cu.job.traits.SavesCuts() || cu.job.publishing >= 0 {
		return
	}
	if !cu.written.All(len(v.Shards), func(i int) bool {
		st := cu.job.shardStatus(i)
		return st != nil && slices.ContainsFunc(st.Segments, func(g protocol.Segment) bool { return g.Cut > v.Durable })
	}) {
		return
	}
	written := make([][]protocol.Segment, len(v.Shards))
	for i := range v.Shards {
		written[i] = cu.job.shardStatus(i).Segments
	}
	cut, segments := newestCut(written, v.Durable)
	if cut < 0 || cu.job.traits.CutsBySlot && cut != v.Named { // the clocks of older cuts are not known any more
		return
	}
	p := &Publish{Generation: v.Generation, Cut: cut, Segments: segments, Clocks: v.NamedClocks}
	for i := range v.Shards {
		p.Epochs = append(p.Epochs, v.Shards[i].Epoch)
	}
	cu.job.publishing, cu.job.formerStates, cu.job.publishedStates = cut, cu.job.publishedStates, nil
	for _, g := range segments {
		cu.job.publishedStates = append(cu.job.publishedStates, protocol.StateNames(g.States)...)
	}
	cu.rec.pending.Publish = p
}

// published records that a checkpoint is durable.
func (cu *cuts) published(p *Publish) {
	set(cu.rec, &cu.record.View.Durable, p.Cut)
	set(cu.rec, &cu.record.View.DurableClocks, p.Clocks)
	cu.record.lostUpdates.DropCovered(cu.record.View.Saved)
	cu.durableAt = cu.record.NextRevision()
	cu.rec.event("checkpoint", "", "checkpoint of clock %d is durable", p.Cut)
	cu.measureSave()
}
