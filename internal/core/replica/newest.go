package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// newest gathers an update that has rows more than once, because parts of it left
// before their sender knew that it would touch them again. The last delta of a row
// stands for all of them: the sender has added them up, in its program's order, so
// that the bits do not depend on when parts left.
type newest struct {
	order  []perdure.TableID
	tables map[perdure.TableID]*gathered
}

// gathered is one table's: rows in the order in which they first come.
type gathered struct {
	index  *table.Index
	values []float32
}

func gather() *newest { return &newest{tables: map[perdure.TableID]*gathered{}} }

// add adds a block of a table with rows of dim values.
func (n *newest) add(b *wire.Block, dim int) {
	if b.Count == 0 {
		return
	}
	t := n.tables[b.Table]
	if t == nil {
		t = &gathered{index: table.NewIndex()}
		n.tables[b.Table] = t
		n.order = append(n.order, b.Table)
	}
	for i := range b.Count {
		delta := b.Values[i*dim : (i+1)*dim]
		at, added := t.index.Add(b.ID(i))
		if added {
			t.values = append(t.values, delta...)
			continue
		}
		copy(t.values[at*dim:], delta)
	}
}

// each hands on what has been gathered.
func (n *newest) each(apply func(*wire.Block)) {
	for _, id := range n.order {
		t := n.tables[id]
		dim := len(t.values) / t.index.Len()
		for from := 0; from < t.index.Len(); {
			ids := t.index.IDs(from, t.index.Len())
			values := t.values[from*dim : (from+len(ids))*dim]
			apply(&wire.Block{Rows: wire.Rows{Table: id, Count: len(ids), IDs: ids}, Values: values})
			from += len(ids)
		}
	}
}
