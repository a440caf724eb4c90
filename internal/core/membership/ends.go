package membership

import "github.com/perdure/perdure"

// Close requests a last checkpoint, of the earliest clock that every slot can still meet, because the job is about to
// end. Training continues in the meantime, even if processes die. Callers wait until Closed. It is idempotent.
func (c *Core) Close() {
	if c.facts.Closing == nil && c.job.traits.Closes() {
		set(c.rec, &c.facts.Closing, &Closing{})
		c.reconcile()
	}
}

// Closed reports whether a job that is ending has saved everything it can. It is false if the job is about to complete
// anyway.
func (c *Core) Closed() bool {
	v, last, end := &c.facts.View, c.facts.Closing, c.facts.End()
	switch {
	case last == nil:
		return false
	case !c.facts.Placed():
		return true // no slot has started
	}
	return last.Named && v.Durable >= last.Cut && (end == 0 || v.Durable < end)
}

// Finish records that the results of the job are safe, so that all processes may end.
func (c *Core) Finish() {
	if !c.facts.View.Done {
		set(c.rec, &c.facts.View.Done, true)
		set(c.rec, &c.facts.Contained, c.contained)
	}
}

// Fail ends a job because of an unrecoverable error. The coordinator reports the error, and so does its replacement.
func Fail(why string, c *Core) { c.rec.fail("%s", why) }

// Complete reports whether every slot has finished its last clock and every update is applied (and saved, where
// checkpoints are kept). A new core takes it from the facts.
func (c *Core) Complete() bool { return c.job.complete || c.facts.View.Done }

// checkComplete determines whether the job is complete.
func (c *Core) checkComplete() {
	v := &c.facts.View
	was := c.job.complete
	c.job.complete = false
	if v.End <= 0 || v.Tentative || c.job.traits.Saves() && v.Durable < v.End {
		return
	}
	if !c.finished.All(len(c.job.slots), func(i int) bool {
		w := c.job.slots[i].worker
		if v.Slots[i].Left || v.Slots[i].From >= v.End {
			return true
		}
		return w != nil && w.Finished && w.Generation == v.Generation && w.Clock >= v.EndOf(perdure.Slot(i))
	}) {
		return
	}
	if !c.applied.All(len(v.Shards),
		func(i int) bool { st := c.job.shardStatus(i); return st != nil && st.Ready && st.MinClock >= v.End }) {
		return
	}
	c.job.complete = true
	if !was {
		c.contained = c.job.updatesIn()
		c.rec.event("complete", "", "every slot has finished clock %d", v.End)
	}
}

// EndAfter ends the job at the earliest clock that every slot can still meet, as requested by a slot at clock at. Under
// two-step clocks that is this clock itself, whatever the other slots are doing: none of its updates can be applied
// before the requesting slot has ticked it. Otherwise the slots pause and report their clocks: see decidePause.
//
// A tentative end stops every slot at one clock, whose model a slot then evaluates. Continue revokes it and EndAfter
// confirms it, whichever slot asks.
func (c *Core) EndAfter(at perdure.Clock, tentative bool) {
	v := &c.facts.View
	at = max(at, 1)
	switch {
	case v.Tentative && !tentative:
		set(c.rec, &v.Tentative, false)
		c.rec.endAt(v.End)
	case v.End != 0 && (v.End <= at || tentative && v.End != c.facts.Job.Clocks):
		return
	case c.facts.TwoStep():
		c.rec.endAt(at)
		return
	case !c.facts.Ending:
		set(c.rec, &c.facts.Ending, true)
		set(c.rec, &c.facts.Trying, tentative)
		set(c.rec, &c.facts.Reached, at)
	default: // workers repeat the request until the end is named
		if c.facts.Trying && !tentative {
			set(c.rec, &c.facts.Trying, false)
		}
		if at > c.facts.Reached {
			set(c.rec, &c.facts.Reached, at)
		}
		return
	}
	c.reconcile()
}

// Continue revokes the tentative end at a clock because the model misses the goal. The job ends as planned, unless it
// reaches the goal earlier.
func (c *Core) Continue(at perdure.Clock) {
	v := &c.facts.View
	if !v.Tentative || v.End != at {
		return
	}
	set(c.rec, &v.Tentative, false)
	set(c.rec, &v.End, c.facts.Job.Clocks)
	c.rec.event("continue", "", "the model of clock %d misses the goal: training continues", at)
	c.reconcile()
}

// decidePause ends a pause once every slot has reported the clock at which it pauses. If an end was requested, it is
// the highest of these clocks and of the clocks of the requests, so no shard has an update beyond it. If a change of
// members was requested, it takes effect at the clock after the highest, so every slot receives it in time. The pause
// continues until all shards have received the decision.
func (c *Core) decidePause() {
	v := &c.facts.View
	c.cuts.wantCut()
	if v.Pause {
		c.endPause()
	}
	if c.facts.Told < v.Roster && c.roster.rosterKnown() {
		set(c.rec, &c.facts.Told, v.Roster)
	}
	if c.facts.CutTold < v.Named && c.cuts.cutKnown() {
		set(c.rec, &c.facts.CutTold, v.Named)
	}
	pause := c.facts.Ending || c.facts.Change != nil && !v.Tentative || c.facts.Told < v.Roster || c.facts.Cutting ||
		c.facts.CutTold < v.Named
	if pause == v.Pause {
		return
	}
	if set(c.rec, &v.Pause, pause); pause && !c.rec.deltas.Paused() { // else no worker knew of its end
		c.job.pausedAt = v.Revision + 1
	}
}

// endPause makes the decision for which the slots have paused, if all of them have reported their clocks.
func (c *Core) endPause() {
	if c.facts.View.Revision < c.job.pausedAt {
		return // no view contains the pause yet
	}
	if !c.paused.All(len(c.job.slots), func(i int) bool { _, surely := c.job.stands(i); return surely }) {
		return
	}
	working, come := c.job.stand()
	if c.facts.Ending {
		set(c.rec, &c.facts.Ending, false)
		if end := max(come, c.facts.Reached); c.facts.View.End == 0 || end < c.facts.View.End {
			c.rec.stopAt(end, c.facts.Trying)
		}
	}
	// A change waits while an end is tentative, and until shards know the slots that left: a slot may be reassigned.
	if ch := c.facts.Change; ch != nil && !c.facts.View.Tentative && !c.rec.deltas.Left() {
		set(c.rec, &c.facts.Change, nil)
		c.roster.changeNow(*ch, working)
	}
	if c.facts.Cutting {
		c.cuts.nameCut(working)
	}
}
