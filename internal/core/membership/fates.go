package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
)

// learnBases decides what a lost shard's applied vector starts with: what each
// slot was acknowledged, or, under a chain that acknowledges early, what its new
// head has, where that is more. The gap is lost, counted and never awaited.
func (c *Core) learnBases() {
	for _, i := range c.unbased.sorted() {
		base, known := c.base(i)
		if !known {
			continue
		}
		v := &c.facts.View
		lost := c.facts.PastClocks // of all that the vector counts, what the rows lack
		for slot, n := range base {
			lost += int64(v.Slots[slot].Clocks(n))
			if !c.traits.Early { // it begins as the job did: of a run that goes on from another's checkpoint, with that
				lost -= int64(v.Slots[slot].Clocks(v.Cut))
			}
		}
		if c.traits.Early {
			lost -= int64(c.shardStatus(i).Seq)
		}
		c.facts.UpdatesLost += lost - c.facts.ShardLost[i]
		c.facts.ShardLost[i] = lost
		next := c.facts.View.Shards[i]
		next.Base = base
		c.change(i, next)
	}
}

// base computes the applied vector that a lost shard starts with; not known
// while a live slot has not told what it was acknowledged.
func (c *Core) base(shard int) (base []perdure.Clock, known bool) {
	n := len(c.facts.View.Slots)
	var has []perdure.Clock // what the rows have, where any are left
	if c.traits.Early {
		st := c.shardStatus(shard)
		if st == nil || len(st.Applied) != n {
			return nil, false
		}
		has = st.Applied
	}
	if !c.based[shard].all(n, func(slot int) bool { _, known := c.acknowledged(shard, slot); return known }) {
		return nil, false
	}
	base = make([]perdure.Clock, n)
	for i := range base {
		base[i], _ = c.acknowledged(shard, i)
	}
	for i := range has {
		base[i] = max(base[i], has[i])
	}
	if c.twoStep() {
		// All slots' counts of a shard are equal under two-step clocks; some just
		// have not heard of the last one. One that has done none of its clocks yet
		// tells nothing: it may have joined before the others came to its first.
		most := c.facts.View.Cut
		for i, n := range base {
			if n > c.facts.View.Slots[i].From {
				most = max(most, n)
			}
		}
		for i := range base {
			base[i] = c.facts.View.Slots[i].Clamp(most)
		}
	}
	return base, true
}

// acknowledged returns how many of a slot's clocks a lost shard had acknowledged as
// applied, as far as anybody knows; not known yet while a live slot has not told.
func (c *Core) acknowledged(shard, slot int) (n perdure.Clock, known bool) {
	c.looks.slots++
	sl, o := &c.facts.View.Slots[slot], &c.slots[slot]
	if sl.Left {
		return sl.Until, true
	}
	if !sl.Settled || o.gone {
		return c.highestApplied(slot)
	}
	if o.worker == nil {
		return 0, false
	}
	at := slices.IndexFunc(o.worker.Acked, func(a perdure.Acked) bool {
		return int(a.Shard) == shard && a.Epoch == c.facts.View.Shards[shard].Epoch
	})
	if at < 0 {
		return 0, false
	}
	// A process that has not heard of the shard yet knows nothing of its
	// predecessors' updates, but it will not send them.
	return max(o.worker.Acked[at].Applied, sl.Start), true
}

// highestApplied returns the most that any shard that kept its rows has applied
// of a dead slot, which it was or could have been acknowledged; not known while
// one of them has not told.
func (c *Core) highestApplied(slot int) (most perdure.Clock, known bool) {
	most = c.facts.View.Slots[slot].Start
	known = c.slots[slot].highest.all(len(c.facts.View.Shards), func(i int) bool {
		if c.unbased.has(i) {
			return true // it knows nothing itself
		}
		f, told := c.fence(i, slot)
		if told {
			most = max(most, f.Counts.Applied)
		}
		return told
	})
	return most, known
}

func (c *Core) twoStep() bool { return c.facts.Job.TwoStep(c.facts.View.Tables) }

// fence returns a shard's word on a slot's newest incarnation, if it serves and has
// fenced the older ones.
func (c *Core) fence(shard, slot int) (f perdure.Fence, told bool) {
	st := c.shardStatus(shard)
	if st == nil || !st.Ready {
		return f, false
	}
	f, told = st.Fence(perdure.Slot(slot))
	return f, told && f.Incarnation == c.facts.View.Slots[slot].Incarnation
}

// fences returns every shard's fence of a slot; nil unless all have theirs, and good
// ones: then the slot waits for the word of a shard that has not.
func (c *Core) fences(slot int, good func(f *perdure.Fence) bool) []perdure.Fence {
	n, at := len(c.facts.View.Shards), &c.slots[slot].fenced
	c.fencing[*at%cursor(n)].remove(slot)
	if !at.all(n, func(i int) bool { f, told := c.fence(i, slot); return told && good(&f) }) {
		c.fencing[*at].add(slot)
		return nil
	}
	fences := make([]perdure.Fence, n)
	for i := range fences {
		fences[i], _ = c.fence(i, slot)
	}
	return fences
}

// decide takes the next step of the slots that are awake: settling their fates, then
// noting that every shard has carried that out.
func (c *Core) decide() {
	awake := c.woken.sorted()
	c.woken.clear()
	for _, slot := range awake {
		c.looks.slots++
		sl := c.facts.View.Slots[slot]
		switch {
		case sl.Settled || sl.Incarnation == 0 && !sl.Decided:
		case sl.Decided:
			c.settle(slot)
		case !c.decideSlot(slot):
			return
		}
	}
}

// decideSlot settles the fate of a dead slot's last clock. Under two-step clocks:
// was any tick seen, all get it; was staging lost where it is needed, all roll
// back, or, under a strategy that loses rows, that shard counts the update as
// lost; was no tick seen, the staging is dropped and the clock is done again.
// Otherwise the next process starts at the lowest count of all shards. It reports
// whether the job goes on as it was.
func (c *Core) decideSlot(slot int) bool {
	fences := c.fences(slot, func(*perdure.Fence) bool { return true })
	if fences == nil {
		return true
	}
	start, staged := fences[0].Counts.Applied, fences[0].Counts.Staged
	for _, f := range fences {
		if c.twoStep() {
			start = max(start, f.Counts.Ticked)
		} else {
			start = min(start, f.Counts.Applied)
		}
		staged = min(staged, f.Counts.Staged)
	}
	if c.twoStep() && staged < start {
		switch why, fate := "slot %d died half way through clock %d and a shard lost its part", c.strategy.Halved(); fate.Kind {
		case recovery.RollBack:
			c.rollBack(why, slot, start-1)
			return false
		case recovery.Fail:
			c.fail(why+": %s", slot, start-1, fate.Why)
			return false
		}
	}
	next := c.facts.View.Slots[slot]
	next.Decided, next.Start = true, start
	c.changeSlot(slot, next)
	most := start
	for i := range fences {
		most = max(most, fences[i].Counts.Applied)
	}
	c.made(slot, most)
	for i := range fences {
		if n := int64(start - fences[i].Counts.Staged); c.twoStep() && n > 0 {
			c.facts.UpdatesLost += n
			c.facts.ShardLost[i] += n
		}
	}
	if last := c.slots[slot].lastClock; next.Incarnation > 1 {
		c.facts.ClocksRedone += int64(max(0, last+1-start))
	}
	c.setClock(slot, start)
	return true
}

// settle notes that every shard has carried a decision out. A slot that joins is not
// settled before the others have come to the clock before its first.
func (c *Core) settle(slot int) {
	if c.isEarly(slot) {
		c.early.add(slot)
		return
	}
	c.early.remove(slot)
	if c.fences(slot, func(f *perdure.Fence) bool { return f.Carried }) == nil {
		return
	}
	next := c.facts.View.Slots[slot]
	next.Settled = true
	c.changeSlot(slot, next)
	c.watch.Await(&c.slots[slot].ear) // its process speaks from now on
}
