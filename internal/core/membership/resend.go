package membership

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
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

// Weaken has nobody roll back because a shard was lost, or for want of updates that nobody
// has kept. It is for negative controls only.
func (c *Core) Weaken() { c.weakened = true }

// unkept returns a slot of whose updates that are in no checkpoint some are kept by
// nobody, -1 if there is none.
func (c *Core) unkept() int {
	for i := range c.facts.Slots {
		if c.facts.Slots[i].Unkept > c.facts.View.Durable && !c.weakened {
			return i
		}
	}
	return -1
}

// outlives notes that a slot's process is gone, and with it what it has kept, and has the
// strategy say what becomes of a shard that needs that: one that was restored and has not
// been sent all again.
func (c *Core) outlives(slot int) {
	if c.traits.Retains() {
		c.facts.Slots[slot].Unkept = unknown
	}
	needed := slices.ContainsFunc(c.mending.sorted(), func(s int) bool { return !c.whole(s) })
	fate := c.strategy.Outlived(recovery.Death{Slot: slot, Needed: needed, Repeats: c.repeats()})
	switch {
	case fate.Kind == recovery.Fail:
		c.fail("%s", fate.Why)
	case fate.Kind == recovery.RollBack && !c.weakened:
		c.rollBack("%s", fate.Why)
	}
}

// repeats reports whether what a dead process had done is done again with the same
// result: all that is read is a function of the clock. What has been read of that, and
// then was lost with all shards that had it, nobody has to take back.
func (c *Core) repeats() bool {
	return c.twoStep() && !slices.ContainsFunc(c.facts.View.Tables, func(t perdure.TableSpec) bool { return !t.Consistency.TwoStep() })
}

// made notes, when it is known, up to which clock there are updates of a slot's former
// processes.
func (c *Core) made(slot int, upTo perdure.Clock) {
	p, first := &c.facts.Slots[slot], c.facts.View.Slots[slot].From // below it there are none of this term's
	if first < upTo && p.Made < upTo {
		p.Made, c.dirty = upTo, true
	}
	if !c.traits.Retains() {
		return
	}
	if p.Unkept == unknown || first < upTo && p.Unkept < upTo {
		p.Unkept, c.dirty = upTo, true
	}
	c.calling.add(slot)
}

// whole reports whether a shard has all that it had had before it was restored.
func (c *Core) whole(shard int) bool {
	if !c.facts.View.Shards[shard].Restored {
		return true
	}
	st := c.shardStatus(shard)
	return st != nil && st.Whole
}

// noteMending notes whether it is to be seen yet that a shard is sent all again.
func (c *Core) noteMending(shard int) {
	if c.facts.View.Shards[shard].Restored {
		c.mending.add(shard)
	} else {
		c.mending.remove(shard)
	}
}

// wantCut has the slots pause for a cut to be named, if one is asked for.
func (c *Core) wantCut() {
	v := &c.facts.View
	if c.facts.Cutting || !c.placed() || v.Named > v.Durable && !c.missed() {
		return
	}
	if c.closes() {
		c.facts.Cutting, c.dirty = true, true
		return
	}
	if !c.traits.Retains() && !c.traits.Timed || len(c.calling.list) == 0 {
		return
	}
	at, asked := c.calls()
	if !asked {
		return
	}
	if working, _ := c.stand(); c.cutFrom(max(at, working)) <= v.Durable {
		return
	}
	c.facts.Cutting, c.dirty = true, true
}

// missed reports whether there will be no checkpoint of the cut that was named last: a
// shard has gone on after it, and who was writing it is gone.
func (c *Core) missed() bool {
	v := &c.facts.View
	for i := range v.Shards {
		st := c.shardStatus(i)
		if st != nil && st.Ready && st.Named >= v.Named && st.Missed {
			return true
		}
	}
	return false
}

// cutFrom returns the first clock from the given one on of which there can be a cut, after
// those that there were. The job's end is one.
func (c *Core) cutFrom(at perdure.Clock) perdure.Clock {
	at = max(at, c.facts.View.Named+1)
	if end := c.facts.View.End; end > 0 {
		return min(at, end)
	}
	return at
}

// calls reports whether any slot asks for a cut, and after which of their clocks.
func (c *Core) calls() (at perdure.Clock, asked bool) {
	for _, i := range c.calling.sorted() {
		need, asks := c.callsFor(i)
		if !asks {
			c.calling.remove(i)
			continue
		}
		at, asked = max(at, need), true
	}
	return at, asked
}

// callsFor reports whether a slot asks for a cut, and of which clock at least: since it
// is to leave, or its process is gone, or keeps too much.
func (c *Core) callsFor(slot int) (at perdure.Clock, asks bool) {
	c.looks.slots++
	v, p, sl, o := &c.facts.View, &c.facts.Slots[slot], &c.facts.View.Slots[slot], &c.slots[slot]
	if p.Unkept > v.Durable && p.Unkept != unknown {
		at, asks = p.Unkept, true
	}
	if c.ending.has(slot) && v.Durable < sl.Until && c.spanDone(slot) {
		at, asks = max(at, sl.Until), true
	}
	w := o.worker
	asks = asks || w != nil && !o.gone && w.Crowded && w.Generation == v.Generation && w.Revision >= c.durableAt
	return at, asks
}

// nameCut names a cut, all slots standing at the given clock or before it.
func (c *Core) nameCut(working perdure.Clock) {
	c.facts.Cutting, c.dirty = false, true
	stood := working
	if slices.ContainsFunc(c.facts.Slots, func(p Place) bool { return p.AtCuts }) {
		working += 2 // the clock before a cut is one that nobody has begun: its program is to save there
	}
	at, asked := c.calls()
	if c.closes() {
		if max(at, stood) <= c.facts.View.Durable {
			c.nameLast(c.facts.View.Durable) // nothing was done since
			return
		}
		asked = true
	}
	asked = asked || c.traits.Timed
	if at = c.cutFrom(max(at, working)); !asked || at <= c.facts.View.Durable {
		return
	}
	c.nameLast(at)
	c.facts.View.Named = at
	c.timer.Named(c.tick)
	c.event("cut", "", "a checkpoint of clock %d is asked for", at)
}

// cutTold reports whether every shard knows of the cut that was named last.
func (c *Core) cutTold() bool {
	return c.cutHeard.all(len(c.facts.View.Shards), func(i int) bool {
		st := c.shardStatus(i)
		return st != nil && st.Ready && st.Named >= c.facts.View.Named
	})
}

// forgetCuts forgets, in a roll-back, which cuts were asked for, and by whom: what nobody
// has kept is of clocks that are all done again.
func (c *Core) forgetCuts() {
	c.facts.Cutting, c.facts.View.Named, c.facts.CutTold = false, 0, 0
	if c.facts.Closing != nil {
		c.facts.Closing = &Closing{} // its cut is forgotten too
	}
	for i := range c.facts.Slots {
		c.facts.Slots[i].Unkept, c.facts.Slots[i].Made = 0, 0
	}
	c.calling.clear()
	for _, s := range c.mending.sorted() {
		next := c.facts.View.Shards[s]
		next.Restored = false
		c.change(s, next)
	}
}
