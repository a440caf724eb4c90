package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// combining adds up the updates of one clock for tables that combine them. When all updates of the clock are there, the
// tables' rules run once for each row that any of them touches.
//
// Invariants:
//   - It is empty between clocks, which is the only time at which other code can see the state. Under two-step clocks
//     the intake releases all updates of a clock together, so no snapshot, image or answer falls between the first and
//     the last of them. That is why sums need not be saved, copied or logged.
//   - An update is added once, because the intake releases it once, in the order of the slots.
//   - The divisor is known before the first update is added. It counts the slots whose updates of the clock are
//     released and not lost, including updates that do not touch the row, or any row.
type combining struct {
	tables    []*combined // by table; nil: its rule runs for each update
	any       bool        // some table combines
	open      bool        // an update of the current clock has been added
	slots     int         // number of slots whose updates are not lost
	block     wire.Block  // scratch: the block passed to apply
	mutations mutation.Combine
}

// combined is the sum of a clock's updates to one table.
type combined struct {
	sum *table.DeltaSum
	how perdure.Combine
	all float64 // total weight of the updates that are not lost
	own float64 // weight of the current update
}

// of allocates the sums for the current tables.
func (c *combining) of(parts []*table.Part) {
	c.tables, c.any = make([]*combined, len(parts)), false
	for i, p := range parts {
		if p.Spec.Combine != perdure.CombineEach {
			c.tables[i], c.any = &combined{sum: table.NewDeltaSum(p.Spec, p.First, p.Rows), how: p.Spec.Combine}, true
		}
	}
}

// begin determines the weight of an update that is about to be applied. For the first update of a clock it also
// determines the total weight.
func (c *combining) begin(u *consistency.Update, in *consistency.Sequencer) {
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
			if each.Lost && !c.mutations.Divisor {
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

// weigh reads the weights of an update from its last part. The weight is 1 where the sender gave none.
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

// combines reports whether the table combines updates.
func (c *combining) combines(t perdure.TableID) bool {
	return int(t) < len(c.tables) && c.tables[t] != nil
}

// add adds a block of the current update to the sums of its table, which must combine updates.
func (c *combining) add(b *wire.Block, p *table.Part) error {
	if err := p.CheckRows(b.First, b.IDs, b.Count, len(b.Values)); err != nil {
		return err
	}
	t := c.tables[b.Table]
	t.sum.Add(b.First, b.IDs, b.Count, b.Values, t.how.Share(c.slots, t.own, t.all))
	return nil
}

// end passes the sums of a clock to apply. whole means that all updates of the clock were added.
func (c *combining) end(whole bool, apply func(*wire.Block)) {
	c.open = !whole
	for id, t := range c.tables {
		if t == nil {
			continue
		}
		t.sum.Flush(func(first perdure.RowID, ids []perdure.RowID, count int, values []float32) {
			c.block = wire.Block{
				Rows: wire.Rows{Table: perdure.TableID(id), First: first, Count: count, IDs: ids}, Values: values,
			}
			apply(&c.block)
		})
	}
	c.block = wire.Block{}
}
