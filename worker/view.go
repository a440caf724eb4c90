package worker

import (
	"github.com/perdure/perdure"
)

// onDelta brings the client to what changed of the view that it has. An error is
// for the connection: whoever has missed something is told the whole view on the next
// one. It needs c.mu.
func (c *Client) onDelta(d *perdure.ViewDelta) error {
	if d.Revision <= c.view.Revision {
		return nil // heard before
	}
	v, err := d.Apply(&c.view)
	if err == nil {
		c.onView(v)
	}
	return err
}

// onView brings the client to what the view says. It needs c.mu.
func (c *Client) onView(v perdure.View) {
	if c.viewed && v.Revision <= c.view.Revision {
		return
	}
	saved := v.Durable != c.view.Durable
	rolled := c.viewed && v.Generation > c.generation
	ends := v.End != c.view.End
	c.view, c.viewed, c.generation = v, true, v.Generation
	c.spans = v.Spans()
	if len(c.shards) == 0 {
		c.reads = c.newReads(len(v.Shards))
		for i := range v.Shards {
			c.shards = append(c.shards, &shardLink{id: perdure.ShardID(i), rows: c.reads.Shard(perdure.ShardID(i))})
		}
	}
	c.setMoment()
	if rolled {
		c.rollBack()
	}
	if ends {
		c.reads.NeedLess()
		c.carryOut()
	}
	if saved {
		for _, sh := range c.shards {
			c.dropSafe(sh)
		}
	}
	if v.Shards[0].Server >= 0 {
		for _, sh := range c.shards {
			c.direct(sh, &v.Shards[sh.id])
		}
		c.dropPeers()
	}
	c.broadcast()
	c.notify()
}

// rollBack forgets everything of the abandoned generation. It needs c.mu.
func (c *Client) rollBack() {
	c.rolled = !c.cfg.Observer
	c.finished = false
	begin := c.view.Cut
	if c.slot >= 0 {
		begin = c.view.Begin(c.slot)
	}
	for _, sh := range c.shards {
		sh.building, sh.met, sh.headApplied, sh.behind, sh.keptBytes, sh.shownBytes = nil, false, 0, false, 0, 0
		sh.acked, sh.retained, sh.condensed = 0, 0, 0
		sh.kept, sh.counts = nil, perdure.Counts{Staged: begin, Ticked: begin, Applied: begin, Seen: begin}
	}
	c.keptBytes, c.retained, c.crowded = 0, 0, false
	c.reads.RollBack(c.view.Cut)
	c.state, c.saved, c.stateDirty, c.built, c.held = nil, nil, false, false, false
	for _, t := range c.tables {
		if t != nil {
			t.endClock()
		}
	}
}
