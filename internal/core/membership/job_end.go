package membership

import "github.com/perdure/perdure"

// RequestFinalCheckpoint requests a last checkpoint, of the earliest clock that every slot can still meet, because the
// job is about to end. Training continues in the meantime, even if processes die. Callers wait until
// FinalCheckpointDone. It is idempotent.
func (c *Core) RequestFinalCheckpoint() {
	if c.record.Final == nil && c.job.traits.SavesAtEnd() {
		set(c.rec, &c.record.Final, &FinalCheckpoint{})
		c.reconcile()
	}
}

// FinalCheckpointDone reports whether a job that is ending has saved everything it can. It is false if the job is about
// to complete anyway.
func (c *Core) FinalCheckpointDone() bool {
	v, last, end := &c.record.View, c.record.Final, c.record.End()
	switch {
	case last == nil:
		return false
	case !c.record.Placed():
		return true // no slot has started
	}
	return last.Named && v.Durable >= last.Cut && (end == 0 || !c.record.IsSaved(end))
}

// Finish records that the results of the job are safe, so that all processes may end.
func (c *Core) Finish() {
	if !c.record.View.Done {
		set(c.rec, &c.record.View.Done, true)
		set(c.rec, &c.record.FinalUpdates, c.finalUpdates)
	}
}

// Fail ends a job because of an unrecoverable error. The coordinator reports the error, and so does its replacement.
func Fail(why string, c *Core) { c.rec.fail("%s", why) }

// Complete reports whether every slot has finished its last clock and every update is applied (and saved, where
// checkpoints are kept). A new core takes it from the job record.
func (c *Core) Complete() bool { return c.job.complete || c.record.View.Done }

// checkComplete determines whether the job is complete.
func (c *Core) checkComplete() {
	v, was, closing := &c.record.View, c.job.complete, c.job.closing
	c.job.complete, c.job.closing = false, false
	saved := !c.job.traits.SavesCuts() || c.record.IsSaved(v.End)
	if v.End <= 0 || v.Tentative || !saved && !c.job.traits.CutsBySlot {
		return
	}
	if !c.finished.All(len(c.job.slots), func(i int) bool {
		w := c.job.slots[i].worker
		if v.Slots[i].Left || v.Slots[i].From >= v.End {
			return true
		}
		return w != nil && w.Finished && w.Generation == v.Generation && w.Clock >= v.EndClock(perdure.Slot(i))
	}) {
		return
	}
	if !c.applied.All(len(v.Shards),
		func(i int) bool { st := c.job.shardStatus(i); return st != nil && st.Ready && st.MinClock >= v.End }) {
		return
	}
	if !saved {
		c.cuts.requestLast()
		return
	}
	c.job.complete, c.job.closing = was, was || closing || c.job.publishing < 0
	if c.job.closing && !closing && !was && c.record.Final == nil {
		c.rounds.recordSaves() // all rows that are saved by now get a manifest, and later ones may get none
	}
	if !was && c.job.publishing < 0 { // the end of the job may kill the coordinator while it writes a later one
		c.job.complete, c.finalUpdates = true, c.job.numUpdates()
		c.rec.event("complete", "", "every slot has finished clock %d", v.End)
	}
}

// EndAfter ends the job at the earliest clock that every slot can still meet, as requested by a slot at clock at. Under
// two-step clocks that is this clock itself, whatever the other slots are doing: none of its updates can be applied
// before the requesting slot has ticked it. Otherwise the slots pause and report their clocks: see decidePause.
// A tentative end stops all slots at one clock, whose model a slot evaluates. RevokeEnd revokes it, EndAfter confirms.
func (c *Core) EndAfter(at perdure.Clock, tentative bool) {
	v := &c.record.View
	at = max(at, 1)
	switch {
	case v.Tentative && !tentative:
		c.rec.stopAt(v.End, false)
	case v.End != 0 && (v.End <= at || tentative && v.End != c.record.Job.Clocks):
		return
	case c.record.TwoStep():
		c.rec.stopAt(at, false)
		return
	case !c.record.EndRequested:
		set(c.rec, &c.record.EndRequested, true)
		set(c.rec, &c.record.EndTentative, tentative)
		set(c.rec, &c.record.MinEnd, at)
	default: // workers repeat the request until the end is named
		if c.record.EndTentative && !tentative {
			set(c.rec, &c.record.EndTentative, false)
		}
		if at > c.record.MinEnd {
			set(c.rec, &c.record.MinEnd, at)
		}
		return
	}
	c.reconcile()
}

// RevokeEnd revokes the tentative end at a clock because the model misses the goal. The job ends as planned, unless it
// reaches the goal earlier.
func (c *Core) RevokeEnd(at perdure.Clock) {
	v := &c.record.View
	if !v.Tentative || v.End != at {
		return
	}
	set(c.rec, &v.Tentative, false)
	set(c.rec, &v.End, c.record.Job.Clocks)
	c.rec.event("continue", "", "the model of clock %d misses the goal: training continues", at)
	c.reconcile()
}

// decidePause ends a pause once every slot has reported the clock at which it pauses. If an end was requested, it is
// the highest of these clocks and of the clocks of the requests, so no shard has an update beyond it. If a change of
// members was requested, it takes effect at the clock after the highest, so every slot receives it in time. The pause
// continues until all shards have received the decision.
func (c *Core) decidePause() {
	v, bySlot := &c.record.View, c.job.traits.CutsBySlot
	if c.cuts.pauseForCut(); bySlot {
		c.cuts.cutBySlot()
	}
	if v.Pause {
		c.endPause()
	}
	if c.record.KnownRoster < v.Roster && c.slotMembership.intervalsReceived() {
		set(c.rec, &c.record.KnownRoster, v.Roster)
	}
	if c.record.KnownCut < v.Named && c.cuts.cutKnown() {
		set(c.rec, &c.record.KnownCut, v.Named)
	}
	pause := c.record.EndRequested || c.record.Change != nil && !v.Tentative || c.record.KnownRoster < v.Roster ||
		!bySlot && (c.record.CutRequested || c.record.KnownCut < v.Named)
	if pause == v.Pause {
		return
	}
	if set(c.rec, &v.Pause, pause); pause && !c.rec.deltas.Paused() { // else no worker knew of its end
		c.job.pausedAt = v.Revision + 1
	}
}

// endPause makes the decision for which the slots have paused, if all of them have reported their clocks.
func (c *Core) endPause() {
	if c.record.View.Revision < c.job.pausedAt {
		return // no view contains the pause yet
	}
	if !c.paused.All(len(c.job.slots), func(i int) bool { _, surely := c.job.pauseClock(i); return surely }) {
		return
	}
	working, come := c.job.highestClocks()
	if c.record.EndRequested {
		set(c.rec, &c.record.EndRequested, false)
		if end := max(come, c.record.MinEnd); c.record.View.End == 0 || end < c.record.View.End {
			c.rec.stopAt(end, c.record.EndTentative)
		}
	}
	// A change waits while an end is tentative, and until shards know the slots that left: a slot may be reassigned.
	if ch := c.record.Change; ch != nil && !c.record.View.Tentative && !c.rec.deltas.Left() {
		set(c.rec, &c.record.Change, nil)
		c.slotMembership.applyChange(*ch, working)
	}
	if c.record.CutRequested && !c.job.traits.CutsBySlot {
		c.cuts.nameCut(working)
	}
}
