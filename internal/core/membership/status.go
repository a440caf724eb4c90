package membership

import (
	"slices"

	"github.com/perdure/perdure"
)

// ServerSays takes what a server says of itself. False: it lacks what it was told
// before, and is to be told all.
func (c *Core) ServerSays(index int, process string, d *perdure.ServerDelta) (fits bool) {
	p, o := c.place(Server, index)
	if p.Process != process {
		return true
	}
	c.heard(o)
	if o.server == nil {
		if d.Seq != 1 {
			return false
		}
		o.server = &perdure.ServerWord{}
	}
	before := o.server.Problem()
	suspect := o.ear.Says()
	news := suspect || o.back > 0 && c.tick > o.back
	switch {
	case suspect:
		o.back = c.tick
		c.lookAt(index)
	case news:
		o.back = 0
		c.lookAt(index)
	}
	if d.Draining && !p.Draining {
		p.Draining, c.dirty = true, true
		c.leaving.add(index)
		c.event("draining", target(Server, index), "server:%d is to end; others take over what it holds", index)
		c.lookAt(index)
		news = true
	}
	o.server.Take(d, func(s perdure.ShardID, before *perdure.ShardWord, now *perdure.ShardDelta) {
		news = c.compare(s, before, now) || news
	})
	if now := o.server.Problem(); now != "" && before == "" {
		c.event("trouble", target(Server, index), "server:%d cannot go on, and tries again: %s", index, now)
	}
	if news {
		c.reconcile()
	}
	return true
}

// heard notes a sign of life.
func (c *Core) heard(o *observed) {
	if c.watch.Hushed() {
		c.watch.Excuse(c.subjects())
	}
	c.watch.Sign(&o.ear, o.server != nil || o.worker != nil)
}

// compare has a shard looked at of which a server says what may change its chain, and
// reports whether it says anything that may matter at all.
func (c *Core) compare(s perdure.ShardID, before *perdure.ShardWord, now *perdure.ShardDelta) (news bool) {
	switch {
	case before == nil || now == nil || stirs(&before.ShardStatus, &now.ShardStatus):
		c.heardOf(s)
	case c.counts(before, now):
		c.wake(s)
	default:
		return false
	}
	return true
}

// heardOf has a shard looked at of which a server speaks.
func (c *Core) heardOf(s perdure.ShardID) {
	if c.wake(s) {
		c.look(int(s))
	}
}

// wake has the slots looked at that wait for the word of a shard of which a server
// speaks; false if there is no such shard.
func (c *Core) wake(s perdure.ShardID) bool {
	if s < 0 || int(s) >= len(c.fencing) {
		return false
	}
	for _, slot := range c.fencing[s].list {
		c.woken.add(slot)
	}
	return true
}

// stirs reports whether a replica says something that may change its chain.
func stirs(before, now *perdure.ShardStatus) bool {
	return before.Generation != now.Generation || before.Epoch != now.Epoch || before.Since != now.Since ||
		before.Ready != now.Ready || before.Joined != now.Joined || before.Yielded != now.Yielded || before.Whole != now.Whole || len(before.Applied) != len(now.Applied)
}

// counts reports whether a replica says something that may matter to slots, cuts or
// the job's end.
func (c *Core) counts(before *perdure.ShardWord, now *perdure.ShardDelta) bool {
	end := c.facts.View.End
	return len(now.Fences) > 0 || len(now.Unfenced) > 0 || !slices.EqualFunc(before.Segments, now.Segments, sameSegment) ||
		end > 0 && now.MinClock >= end && before.MinClock != now.MinClock || before.Roster != now.Roster || before.Named != now.Named || before.Missed != now.Missed
}

// sameSegment reports whether two segments of a shard are one.
func sameSegment(a, b perdure.Segment) bool { return a.File == b.File && a.CRC == b.CRC }

// WorkerStatus takes what a worker says of itself.
func (c *Core) WorkerStatus(slot int, process string, st perdure.WorkerStatus) {
	if p, o := c.place(Worker, slot); p.Process == process {
		c.heard(o)
		v, before := &c.facts.View, o.worker
		news := before == nil || before.Generation != st.Generation || before.Finished != st.Finished || len(st.Acked) > 0 ||
			v.Pause || v.End > 0 && st.Clock >= v.End || v.Slots[slot].Until > 0 && st.Clock >= v.Slots[slot].Until
		if st.Crowded {
			c.calling.add(slot)
			news = news || before == nil || !before.Crowded || before.Revision < c.durableAt
		}
		o.worker = &st
		o.ear.Says()
		if st.Generation == c.facts.View.Generation {
			c.setClock(slot, st.Clock)
		}
		if news || len(c.woken.list) > 0 {
			c.reconcile()
		}
	}
}
