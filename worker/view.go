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
	rolled := c.viewed && v.Generation > c.generation
	ends := v.End != c.view.End
	c.view, c.viewed, c.generation = v, true, v.Generation
	c.out.See(v, rolled)
	if len(c.shards) == 0 {
		c.reads = c.newReads(len(v.Shards))
		for i := range v.Shards {
			s := perdure.ShardID(i)
			c.shards = append(c.shards, &shardLink{id: s, out: c.out.Shard(s), rows: c.reads.Shard(s)})
		}
	}
	c.setMoment()
	if rolled {
		c.reads.RollBack(v.Cut)
	}
	if ends {
		c.reads.NeedLess()
		c.carryOut()
	}
	c.out.Crowds() // the coordinator is told all anyway
	if v.Shards[0].Server >= 0 {
		for _, sh := range c.shards {
			c.direct(sh, &v.Shards[sh.id])
		}
		c.dropPeers()
	}
	c.broadcast()
	c.notify()
}
