package membership

import "github.com/perdure/perdure"

// Close asks for a last checkpoint, of the earliest clock that every slot can still
// meet, since the job is to end. All goes on meanwhile, and who dies is replaced: whoever
// asks waits until Closed, or for as long as there is time. Asking again is safe.
func (c *Core) Close() {
	if c.facts.Closing == nil && c.job.traits.Saves() {
		c.facts.Closing, c.rec.dirty = &Closing{}, true
		c.reconcile()
	}
}

// Closed reports whether, of a job that is to end, all that can be kept is. It is not
// where the last cut is the job's own end: then the job is complete in a moment.
func (c *Core) Closed() bool {
	v, last := &c.facts.View, c.facts.Closing
	switch {
	case last == nil:
		return false
	case !c.facts.placed():
		return true // nobody has begun
	}
	return last.Named && v.Durable >= last.Cut && (v.End == 0 || v.Durable < v.End)
}

// Finish says that what the job left behind is safe: everybody may go.
func (c *Core) Finish() {
	if !c.facts.View.Done {
		c.facts.View.Done, c.facts.Contained, c.rec.dirty = true, c.contained, true
	}
}

// Complete reports whether every slot has finished its last clock and every
// update is applied (and, where checkpoints are kept, saved). What is done was: a core
// that has not seen it knows it from the facts.
func (c *Core) Complete() bool { return c.job.complete || c.facts.View.Done }

// checkComplete looks whether all is done.
func (c *Core) checkComplete() {
	v := &c.facts.View
	was := c.job.complete
	c.job.complete = false
	if v.End <= 0 || c.job.traits.Saves() && v.Durable < v.End {
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
	if !c.applied.All(len(v.Shards), func(i int) bool { st := c.job.shardStatus(i); return st != nil && st.Ready && st.MinClock >= v.End }) {
		return
	}
	c.job.complete = true
	if !was {
		c.contained = c.job.updatesIn()
		c.rec.event("complete", "", "every slot has finished clock %d", v.End)
	}
}
