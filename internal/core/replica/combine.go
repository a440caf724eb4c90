package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// combining adds up what the updates of one clock do to tables that combine them, until all of them are
// there and the tables' rules run, once for each row that any of them touches.
//
// Invariants:
//   - it is empty whenever anybody may look at the state: between two clocks. Under two-step clocks the
//     intake gives all updates of a clock out in one go, and so a snapshot, an image and an answer never
//     come between the first and the last of them. Only for that need no sum be saved, copied or logged;
//   - an update is added once, since the intake gives it out once, in the order of the slots;
//   - the divisor is known before the first is added. It counts the slots whose updates of the clock are
//     given out and not lost, also those that do not touch a row, or any.
type combining struct {
	tables []*combined // by table; nil: its rule runs for each update
	any    bool        // some table combines
	open   bool        // an update of the present clock has been added
	slots  int         // whose updates are not lost
	block  wire.Block  // scratch: what is handed out
	weak   weaken.Combine
}

// combined is what a clock's updates do to a table.
type combined struct {
	sum *table.Sum
	how perdure.Combine
	all float64 // the weights of the updates that are not lost
	own float64 // the present update's
}

// of makes room for the sums of the tables that there are now.
func (c *combining) of(parts []*table.Part) {
	c.tables, c.any = make([]*combined, len(parts)), false
	for i, p := range parts {
		if p.Spec.Combine != perdure.CombineEach {
			c.tables[i], c.any = &combined{sum: table.NewSum(p.Spec, p.First, p.Rows), how: p.Spec.Combine}, true
		}
	}
}

// begin looks how much an update counts that is about to be applied, and of the first of a clock how much
// all of them do.
func (c *combining) begin(u *consistency.Update, in *consistency.Intake) {
	if !c.any {
		return
	}
	if !c.open {
		c.open, c.slots = true, 0
		for _, t := range c.tables {
			if t != nil {
				t.all = 0
			}
		}
		for each := range in.Round(u) {
			if each.Lost && !c.weak.Divisor {
				continue
			}
			c.slots++
			c.weigh(each)
			for _, t := range c.tables {
				if t != nil {
					t.all += t.own
				}
			}
		}
	}
	c.weigh(u)
}

// weigh takes the weights of an update: 1, where its sender gave none. They are in its last part.
func (c *combining) weigh(u *consistency.Update) {
	for _, t := range c.tables {
		if t != nil {
			t.own = 1
		}
	}
	if n := len(u.Parts); n > 0 {
		for b := wire.ReadBlocks(u.Parts[n-1]); b.Next(); {
			if b.Weight > 0 && c.combines(b.Table) {
				c.tables[b.Table].own = b.Weight
			}
		}
	}
}

// combines reports whether a table does.
func (c *combining) combines(t perdure.TableID) bool {
	return int(t) < len(c.tables) && c.tables[t] != nil
}

// add adds a block of the present update to the sums of its table, which combines.
func (c *combining) add(b *wire.Block, p *table.Part) error {
	if err := p.CheckRows(b.First, b.IDs, b.Count, len(b.Values)); err != nil {
		return err
	}
	t := c.tables[b.Table]
	t.sum.Add(b.First, b.IDs, b.Count, b.Values, t.how.Share(c.slots, t.own, t.all))
	return nil
}

// end hands out what has been added up of a clock, all of whose updates are there if it is whole.
func (c *combining) end(whole bool, apply func(*wire.Block)) {
	c.open = !whole
	for id, t := range c.tables {
		if t == nil {
			continue
		}
		t.sum.Take(func(first perdure.RowID, ids []perdure.RowID, count int, values []float32) {
			c.block = wire.Block{
				Rows: wire.Rows{Table: perdure.TableID(id), First: first, Count: count, IDs: ids}, Values: values,
			}
			apply(&c.block)
		})
	}
	c.block = wire.Block{}
}
