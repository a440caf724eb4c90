package membership

import (
	"slices"

	"github.com/perdure/perdure"
)

// ServerStatus takes what a server says of itself.
func (c *Core) ServerStatus(index int, process string, st perdure.ServerStatus) {
	p, o := c.place(Server, index)
	if p.Process != process {
		return
	}
	before := problem(o.server)
	c.heard(o)
	news := o.suspect || o.back > 0 && c.tick > o.back
	switch {
	case o.suspect:
		o.suspect, o.killed, o.back = false, false, c.tick
		c.lookAt(index)
	case news:
		o.back = 0
		c.lookAt(index)
	}
	if st.Draining && !p.Draining {
		p.Draining, c.dirty = true, true
		c.leaving.add(index)
		c.event("draining", target(Server, index), "server:%d is to end; others take over what it holds", index)
		c.lookAt(index)
		news = true
	}
	news = c.compare(o, &st) || news
	if now := problem(&st); now != "" && before == "" {
		c.event("trouble", target(Server, index), "server:%d cannot go on, and tries again: %s", index, now)
	}
	if news {
		c.reconcile()
	}
}

// heard notes a sign of life.
func (c *Core) heard(o *observed) {
	c.hears()
	if o.server != nil || o.worker != nil {
		o.pulse.heard(c.tick-o.heardTick, c.patience)
	}
	o.heardTick = c.tick
}

// compare replaces a server's status by a newer one, has the shards looked at of
// which it says what may change their chains, and reports whether it says anything
// that may matter at all. What it costs depends on the status alone.
func (c *Core) compare(o *observed, st *perdure.ServerStatus) (news bool) {
	at := make(map[perdure.ShardID]int, len(st.Shards))
	for i := range st.Shards {
		sh := &st.Shards[i]
		at[sh.Shard] = i
		j, told := o.at[sh.Shard]
		if !told || stirs(&o.server.Shards[j], sh) {
			c.heardOf(sh.Shard)
			news = true
		} else if c.counts(&o.server.Shards[j], sh) {
			c.wake(sh.Shard)
			news = true
		}
	}
	for s := range o.at {
		if _, still := at[s]; !still {
			c.heardOf(s)
			news = true
		}
	}
	o.server, o.at = st, at
	return news
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
func (c *Core) counts(before, now *perdure.ShardStatus) bool {
	end := c.facts.View.End
	return !slices.Equal(before.Fences, now.Fences) || !slices.EqualFunc(before.Segments, now.Segments, sameSegment) ||
		end > 0 && now.MinClock >= end && before.MinClock != now.MinClock || before.Roster != now.Roster || before.Named != now.Named || before.Missed != now.Missed
}

// sameSegment reports whether two segments of a shard are one.
func sameSegment(a, b perdure.Segment) bool { return a.File == b.File && a.CRC == b.CRC }

// problem returns what keeps a server's shards from going on, "" if nothing does.
func problem(st *perdure.ServerStatus) string {
	if st == nil {
		return ""
	}
	for _, sh := range st.Shards {
		if sh.Problem != "" {
			return sh.Problem
		}
	}
	return ""
}

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
		o.worker, o.suspect, o.killed = &st, false, false
		if st.Generation == c.facts.View.Generation {
			c.setClock(slot, st.Clock)
		}
		if news || len(c.woken.list) > 0 {
			c.reconcile()
		}
	}
}
