package membership

import "github.com/perdure/perdure/internal/core/recovery"

// reconcile takes every step that the facts and the observations allow, for all shards and slots that an event may
// concern.
func (c *Core) reconcile() {
	c.rec.refresh()
	if c.facts.Over() {
		return
	}
	for again := true; again; again = c.queue.More(c.facts.Placed()) {
		c.chains.placeShards()
		c.stepChains()
		c.bases.learnBases()
		if why := c.fates.decide(); why != "" {
			c.rollBack(why)
		}
		if c.facts.Failed != "" {
			return
		}
		c.rec.refresh()
		c.roster.leave()
		c.decidePause()
	}
	c.cuts.collectCut()
	c.reports.recovered()
	c.chains.drained()
	c.checkComplete()
}

// stepChains takes the next step of every shard that is due: dead members leave its chain, orphaned shards are
// reassigned, and chains are refilled.
func (c *Core) stepChains() {
	c.rec.judge()
	if !c.queue.Stirred || !c.facts.Placed() {
		return
	}
	c.queue.Stirred = false
	if c.chains.dropDead(); c.facts.Failed != "" {
		return
	}
	whole := !c.chains.missing()
	if whole && len(c.queue.Orphans.All()) > 0 {
		switch fate := c.chains.replaceOrphans(); fate.Kind {
		case recovery.RollBack:
			c.rollBack(fate.Why)
		case recovery.Restored, recovery.Count:
			c.cuts.tookBack()
		}
	}
	c.chains.extend(whole)
}

// rollBack rolls the whole job back to the newest published cut. The higher generation and the cut are recorded
// together.
func (c *Core) rollBack(why string) {
	v := &c.facts.View
	set(c.rec, &v.Generation, v.Generation+1)
	set(c.rec, &v.Cut, v.Durable)
	set(c.rec, &c.facts.Ending, false) // a slot that reached the goal will reach it again
	c.cuts.forgetCuts()
	c.roster.cutSuspended()
	redone := int64(0)
	for i := range v.Slots {
		next := v.Slots[i]
		next.Decided, next.Start = true, next.Clamp(v.Cut)
		c.rec.changeSlot(i, next)
		redone += int64(max(0, c.job.slots[i].lastClock-next.Start))
		c.rec.setClock(i, next.Start)
	}
	for i := range v.Shards {
		c.queue.TouchShard(i) // no shard is ready in this generation
	}
	for i := range v.Slots {
		c.queue.TouchSlot(i, &v.Slots[i])
	}
	set(c.rec, &c.facts.ClocksRedone, c.facts.ClocksRedone+redone)
	c.job.publishing = -1
	c.rec.event("rollback", "", "%s; all roll back to clock %d (generation %d)", why, v.Cut, v.Generation)
	c.cuts.tookBack()
}
