package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// reconcile takes every step that the job record and the observations allow, for all shards and slots that an event may
// concern.
func (c *Core) reconcile() {
	c.rec.refresh()
	if c.record.IsOver() {
		return
	}
	for again := true; again; again = c.queue.More(c.record.Placed()) {
		c.chains.placeShards()
		c.stepChains()
		c.bases.learnBases()
		if why := c.slotRecovery.decide(); why != "" {
			c.rollBack(why)
		}
		if c.record.Failed != "" {
			return
		}
		c.rec.refresh()
		c.slotMembership.releaseLeft()
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
	c.rec.checkServers()
	if !c.queue.ShardsDirty || !c.record.Placed() {
		return
	}
	c.queue.ShardsDirty = false
	if c.chains.dropDead(); c.record.Failed != "" {
		return
	}
	whole := !c.chains.missing()
	if whole && len(c.queue.LostShards.All()) > 0 {
		switch action := c.chains.reassignLostShards(); action.Kind {
		case recovery.RollBack:
			c.rollBack(action.Why)
		case recovery.Restore, recovery.RestorePartial:
			c.cuts.recordFailure()
		}
	}
	c.chains.extend(whole)
}

// rollBack rolls the whole job back to the newest published cut. The higher generation and the cut are recorded
// together.
func (c *Core) rollBack(why string) {
	v := &c.record.View
	set(c.rec, &v.Generation, v.Generation+1)
	set(c.rec, &v.Cut, v.Durable)
	set(c.rec, &v.CutClocks, v.DurableClocks)
	set(c.rec, &c.record.EndRequested, false) // a slot that reached the goal will reach it again
	c.cuts.forgetCuts()
	c.slotMembership.cutSuspended()
	redone := int64(0)
	for i := range v.Slots {
		next := v.Slots[i]
		next.Decided, next.Start, next.Source = true, v.StartClock(perdure.Slot(i)), 0
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
	set(c.rec, &c.record.ClocksRedone, c.record.ClocksRedone+redone)
	c.job.publishing = -1
	c.rec.event("rollback", "", "%s; all roll back to clock %d (generation %d)", why, v.Cut, v.Generation)
	c.cuts.recordFailure()
}
