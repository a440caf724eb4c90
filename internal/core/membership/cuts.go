package membership

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
)

// Under resend, workers keep their updates until a checkpoint contains them. When a server dies, only its own shards
// restart from the newest cut, and workers resend the later updates. This needs, for every slot, a process that has
// kept them, and no process has those of a dead worker. Therefore the death or departure of a worker triggers a cut
// immediately, at a named clock. Until that cut is durable, the death of a server rolls the whole job back.

// unknown is the Place.Unkept of a slot whose process has died, until all shards have reported its clocks.
const unknown perdure.Clock = math.MaxInt64

// If the strategy leaves the interval open, there is none in clocks: every cut is named, when the checkpoint timer is
// due or when one is requested.

// cuts names the requested cuts and publishes them.
type cuts struct {
	facts *Facts
	job   *job
	rec   *record
	queue *dirtySet

	timer     checkpointTimer // if the interval between checkpoints is chosen automatically
	durableAt uint64          // the first known revision with the newest cut
	heard     cursor          // over the shards: which have received the cut that was named
	written   cursor          // over the shards: which have written a segment
}

// times reports whether the timer may name a cut now: no other cut is in progress, or the current one can no longer be
// completed.
func (cu *cuts) times() bool {
	v := &cu.facts.View
	if !cu.job.traits.Timed || cu.facts.Closing != nil || v.Pause || cu.facts.Cutting {
		return false
	}
	return (v.Named <= v.Durable || cu.job.missed()) && cu.facts.Placed()
}

// saveByTime requests a cut if one is due.
func (cu *cuts) saveByTime() {
	at := cu.comes()
	if cu.timer.Due(cu.facts.Saving, at) && cu.facts.CutFrom(at.Working) > cu.facts.View.Durable {
		set(cu.rec, &cu.facts.Cutting, true)
	}
}

// comes returns the job's progress, for the timer.
func (cu *cuts) comes() progress {
	working, _ := cu.job.stand()
	return progress{Tick: cu.job.tick, Working: working, Durable: cu.facts.View.Durable}
}

// tookBack records that a failure made the job restore rows from a checkpoint.
func (cu *cuts) tookBack() {
	if cu.job.traits.Timed {
		s, told := cu.timer.Failed(cu.facts.Saving, cu.comes(), cu.facts.Job.MTBF)
		cu.chose(s, told)
	}
}

// chose records the chosen interval, and reports it to users if it has changed.
func (cu *cuts) chose(s words.Saving, told string) {
	set(cu.rec, &cu.facts.Saving, s)
	if told != "" {
		cu.rec.event("interval", "", "%s", told)
	}
}

// measureSave passes the duration of a checkpoint to the timer: that of the slowest shard.
func (cu *cuts) measureSave() {
	if !cu.job.traits.Timed {
		return
	}
	took := 0.0
	for i := range cu.facts.View.Shards {
		if st := cu.job.shardStatus(i); st != nil {
			took = max(took, st.SaveSeconds)
		}
	}
	s, told := cu.timer.Saved(cu.facts.Saving, cu.comes(), cu.facts.Job.MTBF, took)
	cu.chose(s, told)
}

// wantCut makes the slots pause so that a cut can be named, if one is requested.
func (cu *cuts) wantCut() {
	v := &cu.facts.View
	if cu.facts.Cutting || !cu.facts.Placed() || v.Named > v.Durable && !cu.job.missed() {
		return
	}
	if cu.facts.Closes() {
		set(cu.rec, &cu.facts.Cutting, true)
		return
	}
	if !cu.job.traits.Retains() && !cu.job.traits.Timed || len(cu.queue.Calling.All()) == 0 {
		return
	}
	at, asked := cu.calls()
	if !asked {
		return
	}
	if working, _ := cu.job.stand(); cu.facts.CutFrom(max(at, working)) <= v.Durable {
		return
	}
	set(cu.rec, &cu.facts.Cutting, true)
}

// calls reports whether any slot requests a cut, and the clock that the cut must not precede.
func (cu *cuts) calls() (at perdure.Clock, asked bool) {
	for _, i := range cu.queue.Calling.Sorted() {
		need, asks := cu.callsFor(i)
		if !asks {
			cu.queue.Calling.Remove(i)
			continue
		}
		at, asked = max(at, need), true
	}
	return at, asked
}

// callsFor reports whether a slot requests a cut, and the clock that the cut must not precede. It does if the slot is
// about to leave, its process has died, or its process keeps too many updates.
func (cu *cuts) callsFor(slot int) (at perdure.Clock, asks bool) {
	cu.job.looks.slots++
	v, p, sl, o := &cu.facts.View, &cu.facts.Slots[slot], &cu.facts.View.Slots[slot], &cu.job.slots[slot]
	if p.Unkept > cu.facts.Saved(slot) && p.Unkept != unknown {
		at, asks = p.Unkept, true
	}
	if cu.queue.Ending.Has(slot) && cu.facts.Saved(slot) < sl.Until && cu.job.spanDone(slot) {
		at, asks = max(at, sl.Until), true
	}
	w := o.worker
	asks = asks || w != nil && !o.gone && w.Crowded && w.Generation == v.Generation && w.Revision >= cu.durableAt
	return at, asks
}

// outlives records that a slot's process is gone, along with all updates that it kept. The strategy decides what that
// means for restored shards that have not been resent everything. It returns why the job must roll back, or "".
func (cu *cuts) outlives(slot int) (rollBack string) {
	if cu.job.traits.Retains() {
		set(cu.rec, &cu.facts.Slots[slot].Unkept, unknown)
	}
	needed := false
	for _, s := range cu.queue.Mending.Sorted() {
		short := !cu.job.whole(s)
		if needed = needed || short; short && cu.job.traits.Partial {
			cu.facts.Slots[slot].Doubt(s)
		}
	}
	fate := cu.job.strategy.Outlived(recovery.Death{Slot: slot, Needed: needed, Repeats: cu.facts.Repeats()})
	switch {
	case fate.Kind == recovery.Fail:
		cu.rec.fail("%s", fate.Why)
	case fate.Kind == recovery.RollBack && !cu.job.weak.RollBack:
		return fate.Why
	}
	return ""
}

// nameCut names a cut while all slots pause at clock working or below.
func (cu *cuts) nameCut(working perdure.Clock) {
	set(cu.rec, &cu.facts.Cutting, false)
	stood := working
	if slices.ContainsFunc(cu.facts.Slots, func(p Place) bool { return p.AtCuts }) {
		working += 2 // no slot has started the clock before the cut, so its program can save state there
	}
	at, asked := cu.calls()
	if cu.facts.Closes() {
		if v := &cu.facts.View; max(at, stood) <= v.Durable || v.End > 0 && v.End <= v.Durable {
			cu.nameLast(v.Durable) // no progress since that cut, or none that the job counts
			return
		}
		asked = true
	}
	asked = asked || cu.job.traits.Timed
	if at = cu.facts.CutFrom(max(at, working)); !asked || at <= cu.facts.View.Durable {
		return
	}
	cu.nameLast(at)
	set(cu.rec, &cu.facts.View.Named, at)
	cu.timer.Named(cu.job.tick)
	cu.rec.event("cut", "", "a checkpoint of clock %d is requested", at)
}

// nameLast records the clock of the last checkpoint.
func (cu *cuts) nameLast(cut perdure.Clock) {
	if cu.facts.Closes() {
		set(cu.rec, &cu.facts.Closing, &Closing{Named: true, Cut: cut})
	}
}

// cutKnown reports whether every shard has received the cut that was named last.
func (cu *cuts) cutKnown() bool {
	return cu.heard.All(len(cu.facts.View.Shards), func(i int) bool {
		st := cu.job.shardStatus(i)
		return st != nil && st.Ready && st.Named >= cu.facts.View.Named
	})
}

// forgetCuts discards all requests for cuts in a rollback: the clocks whose updates no process has kept are all redone.
func (cu *cuts) forgetCuts() {
	set(cu.rec, &cu.facts.Cutting, false)
	set(cu.rec, &cu.facts.View.Named, 0)
	set(cu.rec, &cu.facts.CutTold, 0)
	if cu.facts.Closing != nil {
		set(cu.rec, &cu.facts.Closing, &Closing{}) // along with its cut
	}
	for i := range cu.facts.Slots {
		set(cu.rec, &cu.facts.Slots[i].Unkept, 0)
		set(cu.rec, &cu.facts.Slots[i].Made, 0)
		cu.facts.Slots[i].Decided(0)
	}
	for s := range cu.facts.View.Shards {
		cu.facts.lostUpdates.Find(s)
	}
	cu.queue.Calling.Clear()
	for _, s := range cu.queue.Mending.Sorted() {
		next := cu.facts.View.Shards[s]
		next.Restored = false
		cu.rec.changeShard(s, next)
	}
}

// collectCut finds the newest cut that every shard has written and requests its publication. Only one is published at a
// time.
func (cu *cuts) collectCut() {
	v := &cu.facts.View
	if !cu.job.traits.Saves() || cu.job.publishing >= 0 {
		return
	}
	if !cu.written.All(len(v.Shards), func(i int) bool {
		st := cu.job.shardStatus(i)
		return st != nil && slices.ContainsFunc(st.Segments, func(g words.Segment) bool { return g.Cut > v.Durable })
	}) {
		return
	}
	written := make([][]words.Segment, len(v.Shards))
	for i := range v.Shards {
		written[i] = cu.job.shardStatus(i).Segments
	}
	cut, segments := newestCut(written, v.Durable)
	if cut < 0 {
		return
	}
	p := &Publish{Generation: v.Generation, Cut: cut, Segments: segments}
	for i := range v.Shards {
		p.Epochs = append(p.Epochs, v.Shards[i].Epoch)
	}
	cu.job.publishing, cu.job.publishes = cut, nil
	for _, g := range segments {
		cu.job.publishes = append(cu.job.publishes, words.StateNames(g.States)...)
	}
	cu.rec.out.Publish = p
}

// published records that a checkpoint is durable.
func (cu *cuts) published(cut perdure.Clock) {
	set(cu.rec, &cu.facts.View.Durable, cut)
	cu.facts.lostUpdates.Cover(cut)
	cu.durableAt = cu.facts.Coming()
	cu.rec.event("checkpoint", "", "checkpoint of clock %d is durable", cut)
	cu.measureSave()
}
