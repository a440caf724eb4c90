package wire

import (
	"encoding/json"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

func (c *coder) view(v *protocol.View) {
	count(c, &v.Revision)
	c.jobFields(&v.Generation, &v.Cut, &v.End, &v.Durable, &v.Named, &v.Pause, &v.Done, &v.Tentative)
	list(c, &v.Tables, (*coder).table)
	list(c, &v.Shards, (*coder).shardView)
	list(c, &v.Slots, (*coder).slotView)
	count(c, &v.Roster)
	c.cutsBySlot(&v.Hold, &v.CutClocks, &v.DurableClocks, &v.NamedClocks)
}

func (c *coder) viewDelta(d *protocol.ViewDelta) {
	count(c, &d.Base)
	count(c, &d.Revision)
	c.jobFields(&d.Generation, &d.Cut, &d.End, &d.Durable, &d.Named, &d.Pause, &d.Done, &d.Tentative)
	list(c, &d.Tables, (*coder).table)
	list(c, &d.Shards, func(c *coder, s *protocol.ShardChange) {
		c.shard(&s.Shard)
		c.shardView(&s.ShardView)
	})
	list(c, &d.Slots, func(c *coder, s *protocol.SlotChange) {
		c.slot(&s.Slot)
		c.slotView(&s.SlotView)
	})
	count(c, &d.Roster)
	c.cutsBySlot(&d.Hold, &d.CutClocks, &d.DurableClocks, &d.NamedClocks)
}

func (c *coder) cutsBySlot(hold *uint64, clocks ...*protocol.SlotClocks) {
	count(c, hold)
	for _, of := range clocks {
		numbers(c, (*[]perdure.Clock)(of))
	}
}

// jobFields codes the fields that concern all shards and slots.
func (c *coder) jobFields(
	g *perdure.Generation,
	cut, end, durable, named *perdure.Clock,
	pause, done, tentative *bool,
) {
	c.flags(pause, done, tentative)
	count(c, g)
	number(c, cut)
	number(c, end)
	number(c, durable)
	number(c, named)
}

// table codes a table's properties in JSON: there are few, and they are sent once.
func (c *coder) table(t *perdure.TableSpec) {
	var text string
	if !c.reading {
		text = string(JSON(t))
	}
	if c.text(&text); c.reading && c.err == nil {
		if err := json.Unmarshal([]byte(text), t); err != nil {
			c.fail("invalid table: %v", err)
		}
	}
}

func (c *coder) holder(h *protocol.Holder) {
	number(c, &h.Server)
	count(c, &h.Incarnation)
	c.text(&h.Addr)
	count(c, &h.Since)
}

func (c *coder) shardView(s *protocol.ShardView) {
	joined, saved := s.Joining != nil, len(s.Saved) > 0
	c.flags(&s.Lost, &s.Restored, &s.Yields, &joined, &saved)
	c.holder(&s.Holder)
	count(c, &s.Epoch)
	list(c, &s.Followers, (*coder).holder)
	if joined {
		if c.reading {
			s.Joining = &protocol.Holder{}
		}
		c.holder(s.Joining)
	}
	numbers(c, &s.Base)
	if saved {
		list(c, &s.Saved, (*coder).file)
	}
}

func (c *coder) slotView(s *protocol.SlotView) {
	c.flags(&s.Decided, &s.Settled, &s.Left)
	count(c, &s.Incarnation)
	number(c, &s.Start)
	number(c, &s.Source)
	number(c, &s.From)
	number(c, &s.Until)
}
