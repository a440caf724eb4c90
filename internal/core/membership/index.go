package membership

import (
	"slices"

	"github.com/perdure/perdure"
)

// index is what a Core keeps about its shards and places, so that an event costs what
// it may concern. All of it follows from the facts and the observations.
type index struct {
	held    []map[int]struct{} // by server: the shards it holds or joins
	open    set                // shards that are, perhaps, not as they should be; the others are ready
	due     set                // of those: to be looked at now, something happened that may matter to them
	wanting set                // of the open ones: those that wait until there is a server for them
	orphans set                // likewise: shards that nobody has the rows of
	unready set                // shards that do not serve, but for those that are due
	mending set                // shards that were restored, of which it is not known whether all was sent to them again
	unbased set                // lost shards of which it is not known what they begin with

	unjudged set              // servers of which it is to be found out if they are eligible
	away     map[int]struct{} // servers that are awaited, of those that are judged
	leaving  set              // servers that are, perhaps, to end
	healing  map[Kind]*set    // places of which a "serving" event is due once they work again

	woken   set   // slots of which something is, perhaps, to be decided, or settled
	fencing []set // by shard: the slots that wait for its word
	early   set   // slots that wait for the others to come to their first clocks
	ending  set   // slots that are to leave
	calling set   // slots that ask, perhaps, for a cut
	clocks  tally // of all slots that have clocks to do

	paused   cursor   // over the slots, in a pause
	told     cursor   // over the shards, of a roster
	cutHeard cursor   // likewise of a cut that was named
	finished cursor   // over the slots, at the job's end
	applied  cursor   // likewise over the shards
	written  cursor   // over the shards, of whose segments a cut is made
	based    []cursor // by shard, over the slots: who has told what it was acknowledged

	loads     loads // of all servers: how many replicas they hold
	openLoads loads // of those that may be given more
	zoned     bool  // there are several zones
	crowded   set   // shards of which two replicas are in one zone

	looks looks
}

// loads counts servers by how many replicas they hold.
type loads []int

func (l *loads) add(replicas, by int) {
	for len(*l) <= replicas {
		*l = append(*l, 0)
	}
	(*l)[replicas] += by
}

// least returns the least that any of the servers holds, most the most; 0 if there is
// no server.
func (l loads) least() int { return max(0, slices.IndexFunc(l, func(n int) bool { return n > 0 })) }

func (l loads) most() int {
	for i := len(l) - 1; i > 0; i-- {
		if l[i] > 0 {
			return i
		}
	}
	return 0
}

// noteZones notes whether two of a shard's replicas are in one zone.
func (c *Core) noteZones(shard int) {
	sv := &c.facts.View.Shards[shard]
	for i := range sv.Replicas() {
		for j := range i {
			if a, b := sv.Replica(i).Server, sv.Replica(j).Server; a >= 0 && b >= 0 && c.layout[a].Zone == c.layout[b].Zone {
				c.crowded.add(shard)
				return
			}
		}
	}
	c.crowded.remove(shard)
}

// level reports whether no move could make the servers' loads more equal, or bring
// replicas of a shard into more zones, as far as can be said without looking at all.
func (c *Core) level() bool {
	return c.loads.most() < c.openLoads.least()+2 && (!c.zoned || len(c.crowded.list) == 0)
}

// looks counts what the core has looked at; tests hold it against what was touched.
type looks struct{ shards, slots, servers int }

// look has a shard looked at, and the slots that wait for its word.
func (c *Core) look(shard int) {
	c.open.add(shard)
	c.due.add(shard)
	c.wake(perdure.ShardID(shard))
	c.stirred = true
}

// lookAt has a server looked at, and its shards.
func (c *Core) lookAt(server int) {
	for s := range c.held[server] {
		c.look(s)
	}
	c.unjudged.add(server)
	c.stirred, c.uneven = true, true
}

// await has a slot looked at if something is to be decided about it, or carried out.
func (c *Core) await(slot int) {
	if sl := &c.facts.View.Slots[slot]; !sl.Settled && (sl.Incarnation > 0 || sl.Decided) {
		c.woken.add(slot)
	}
}

// noteBase notes whether it is to be learnt what a lost shard begins with.
func (c *Core) noteBase(shard int) {
	if sv := &c.facts.View.Shards[shard]; sv.Lost && sv.Base == nil {
		c.unbased.add(shard)
	} else {
		c.unbased.remove(shard)
	}
}

// judge finds out which servers may be given replicas, and which are awaited, of
// those of which something was heard. Where that changes, so may what becomes of the
// shards that wait for a server.
func (c *Core) judge() {
	news := false
	for _, i := range c.unjudged.list {
		c.looks.servers++
		p, is := &c.facts.Servers[i], c.eligible(i)
		_, was := c.away[i]
		away := !p.Left && !p.Draining && !is
		news = news || is != c.layout[i].Open || away != was
		if c.layout[i].Open {
			c.openLoads.add(c.layout[i].Replicas, -1)
		}
		if c.layout[i].Open = is; is {
			c.openLoads.add(c.layout[i].Replicas, 1)
		}
		if away {
			c.away[i] = struct{}{}
		} else {
			delete(c.away, i)
		}
	}
	c.unjudged.clear()
	if news {
		for _, s := range c.wanting.list {
			c.look(s)
		}
		c.stirred = true
	}
}

// refresh finds out which of the shards that are due serve.
func (c *Core) refresh() {
	for _, s := range c.due.list {
		if c.ready(s) {
			c.unready.remove(s)
		} else {
			c.unready.add(s)
		}
	}
}

// wakeEarly has the slots looked at that wait for the others to come to their first
// clocks: one of these may have.
func (c *Core) wakeEarly() {
	for _, slot := range c.early.list {
		c.woken.add(slot)
	}
}

// noteEnd notes whether a slot is to leave.
func (c *Core) noteEnd(slot int) {
	if sl := &c.facts.View.Slots[slot]; sl.Until > 0 && !sl.Left {
		c.ending.add(slot)
	} else {
		c.ending.remove(slot)
	}
}

// counted returns the clock that a slot is at, as far as is known; -1: it has done
// its last one.
func (c *Core) counted(slot int) perdure.Clock {
	sl := &c.facts.View.Slots[slot]
	clock := max(c.slots[slot].lastClock, sl.Start, sl.From)
	if sl.Until > 0 && clock >= sl.Until {
		return -1
	}
	return clock
}

// setClock notes the clock of a slot's process.
func (c *Core) setClock(slot int, clock perdure.Clock) {
	if c.slots[slot].lastClock == clock {
		return
	}
	before := c.counted(slot)
	c.slots[slot].lastClock = clock
	c.clocks.move(before, c.counted(slot))
	c.wakeEarly()
}

// tally counts slots by their clocks.
type tally struct {
	count map[perdure.Clock]int
	least perdure.Clock // -1: there are none
}

// move counts a slot at another clock; -1: it was not counted, or is not any more.
func (t *tally) move(from, to perdure.Clock) {
	if from == to {
		return
	}
	if to >= 0 {
		t.count[to]++
	}
	if from >= 0 {
		if t.count[from]--; t.count[from] == 0 {
			delete(t.count, from)
		}
	}
	if t.count[t.least] == 0 || to >= 0 && to < t.least {
		t.least = -1
		for clock := range t.count {
			if t.least < 0 || clock < t.least {
				t.least = clock
			}
		}
	}
}

// cursor goes round over so many, until one is found wanting. That one is the first
// to be looked at the next time, so that waiting for all of them costs little.
type cursor int

// all reports whether all n are good.
func (at *cursor) all(n int, good func(i int) bool) bool {
	for range n {
		if *at >= cursor(n) {
			*at = 0
		}
		if !good(int(*at)) {
			return false
		}
		*at++
	}
	return true
}
