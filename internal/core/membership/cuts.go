package membership

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/words"
)

// Under resend workers keep their updates until they are in a checkpoint. A server's
// death takes away only its own shards: they begin again from the newest cut, and are
// sent again what came after. That needs somebody who has kept it, of every slot. What
// the dead had made nobody has: so a worker's death, and its leaving, ask for a cut at
// once, at a clock that is named; and until that is durable, a server's death takes all
// back.

// unknown is Place.Unkept of a slot whose process has died, until all shards have said
// what they have of it.
const unknown perdure.Clock = math.MaxInt64

// Where the strategy leaves the interval open there is none in clocks: every cut is named,
// as those are that somebody asks for, when the checkpoint timer says that it is time.

// cuts names the cuts that somebody asks for, and has them published.
type cuts struct {
	facts  *Facts
	job    *job
	rec    *record
	agenda *dirtySet

	timer     checkpointTimer // where the interval between checkpoints is chosen
	durableAt uint64          // the first revision with the newest cut, as far as this core knows
	heard     cursor          // over the shards: who has heard of the cut that was named
	written   cursor          // over the shards: of whose segments a cut is made
}

// times reports whether a cut may be named now because it is time for one, as far as cuts
// go: or there could be none until the job goes on.
func (cu *cuts) times() bool {
	v := &cu.facts.View
	if !cu.job.traits.Timed || cu.facts.Closing != nil || v.Pause || cu.facts.Cutting {
		return false
	}
	return (v.Named <= v.Durable || cu.job.missed()) && cu.facts.Placed()
}

// saveByTime asks for a cut when it is time for one.
func (cu *cuts) saveByTime() {
	at := cu.comes()
	if cu.timer.Due(cu.facts.Saving, at) && cu.facts.CutFrom(at.Working) > cu.facts.View.Durable {
		set(cu.rec, &cu.facts.Cutting, true)
	}
}

// comes returns how far the job has come, for the timer.
func (cu *cuts) comes() progress {
	working, _ := cu.job.stand()
	return progress{Tick: cu.job.tick, Working: working, Durable: cu.facts.View.Durable}
}

// tookBack notes that rows are taken from a checkpoint since somebody died.
func (cu *cuts) tookBack() {
	if cu.job.traits.Timed {
		s, told := cu.timer.Failed(cu.facts.Saving, cu.comes(), cu.facts.Job.MTBF)
		cu.chose(s, told)
	}
}

// chose records the interval that was chosen, and tells people where it is another.
func (cu *cuts) chose(s words.Saving, told string) {
	set(cu.rec, &cu.facts.Saving, s)
	if told != "" {
		cu.rec.event("interval", "", "%s", told)
	}
}

// measureSave takes over how long the shards say that their part of a checkpoint took: as
// long as the slowest of them.
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

// wantCut has the slots pause for a cut to be named, if one is asked for.
func (cu *cuts) wantCut() {
	v := &cu.facts.View
	if cu.facts.Cutting || !cu.facts.Placed() || v.Named > v.Durable && !cu.job.missed() {
		return
	}
	if cu.facts.Closes() {
		set(cu.rec, &cu.facts.Cutting, true)
		return
	}
	if !cu.job.traits.Retains() && !cu.job.traits.Timed || len(cu.agenda.Calling.All()) == 0 {
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

// calls reports whether any slot asks for a cut, and after which of their clocks.
func (cu *cuts) calls() (at perdure.Clock, asked bool) {
	for _, i := range cu.agenda.Calling.Sorted() {
		need, asks := cu.callsFor(i)
		if !asks {
			cu.agenda.Calling.Remove(i)
			continue
		}
		at, asked = max(at, need), true
	}
	return at, asked
}

// callsFor reports whether a slot asks for a cut, and of which clock at least: since it
// is to leave, or its process is gone, or keeps too much.
func (cu *cuts) callsFor(slot int) (at perdure.Clock, asks bool) {
	cu.job.looks.slots++
	v, p, sl, o := &cu.facts.View, &cu.facts.Slots[slot], &cu.facts.View.Slots[slot], &cu.job.slots[slot]
	if p.Unkept > cu.facts.Saved(slot) && p.Unkept != unknown {
		at, asks = p.Unkept, true
	}
	if cu.agenda.Ending.Has(slot) && cu.facts.Saved(slot) < sl.Until && cu.job.spanDone(slot) {
		at, asks = max(at, sl.Until), true
	}
	w := o.worker
	asks = asks || w != nil && !o.gone && w.Crowded && w.Generation == v.Generation && w.Revision >= cu.durableAt
	return at, asks
}

// outlives notes that a slot's process is gone, and with it what it has kept, and has the
// strategy say what becomes of a shard that needs that: one that was restored and has not
// been sent all again. It returns why all are to roll back, "" if they are not.
func (cu *cuts) outlives(slot int) (rollBack string) {
	if cu.job.traits.Retains() {
		set(cu.rec, &cu.facts.Slots[slot].Unkept, unknown)
	}
	needed := false
	for _, s := range cu.agenda.Mending.Sorted() {
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

// nameCut names a cut, all slots standing at the given clock or before it.
func (cu *cuts) nameCut(working perdure.Clock) {
	set(cu.rec, &cu.facts.Cutting, false)
	stood := working
	if slices.ContainsFunc(cu.facts.Slots, func(p Place) bool { return p.AtCuts }) {
		working += 2 // the clock before a cut is one that nobody has begun: its program is to save there
	}
	at, asked := cu.calls()
	if cu.facts.Closes() {
		if v := &cu.facts.View; max(at, stood) <= v.Durable || v.End > 0 && v.End <= v.Durable {
			cu.nameLast(v.Durable) // nothing was done since, or nothing that the job counts
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
	cu.rec.event("cut", "", "a checkpoint of clock %d is asked for", at)
}

// nameLast notes of which clock the last checkpoint is.
func (cu *cuts) nameLast(cut perdure.Clock) {
	if cu.facts.Closes() {
		set(cu.rec, &cu.facts.Closing, &Closing{Named: true, Cut: cut})
	}
}

// cutTold reports whether every shard knows of the cut that was named last.
func (cu *cuts) cutTold() bool {
	return cu.heard.All(len(cu.facts.View.Shards), func(i int) bool {
		st := cu.job.shardStatus(i)
		return st != nil && st.Ready && st.Named >= cu.facts.View.Named
	})
}

// forgetCuts forgets, in a roll-back, which cuts were asked for, and by whom: what nobody
// has kept is of clocks that are all done again.
func (cu *cuts) forgetCuts() {
	set(cu.rec, &cu.facts.Cutting, false)
	set(cu.rec, &cu.facts.View.Named, 0)
	set(cu.rec, &cu.facts.CutTold, 0)
	if cu.facts.Closing != nil {
		set(cu.rec, &cu.facts.Closing, &Closing{}) // its cut is forgotten too
	}
	for i := range cu.facts.Slots {
		set(cu.rec, &cu.facts.Slots[i].Unkept, 0)
		set(cu.rec, &cu.facts.Slots[i].Made, 0)
		cu.facts.Slots[i].Decided(0)
	}
	for s := range cu.facts.View.Shards {
		cu.facts.lostUpdates.Find(s)
	}
	cu.agenda.Calling.Clear()
	for _, s := range cu.agenda.Mending.Sorted() {
		next := cu.facts.View.Shards[s]
		next.Restored = false
		cu.rec.changeShard(s, next)
	}
}

// collectCut finds the newest cut that every shard has written, and asks for
// its publication, one at a time.
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

// published notes that a checkpoint is durable.
func (cu *cuts) published(cut perdure.Clock) {
	set(cu.rec, &cu.facts.View.Durable, cut)
	cu.facts.lostUpdates.Cover(cut)
	cu.durableAt = cu.facts.Coming()
	cu.rec.event("checkpoint", "", "checkpoint of clock %d is durable", cut)
	cu.measureSave()
}
