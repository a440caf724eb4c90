package replica

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// rowMerger merges an update that contains rows more than once, because some of its parts were sent before the sender
// knew that it would touch their rows again. The last delta of a row replaces the earlier ones: the sender has added
// them up in its program's order, so the result has the same bits no matter when parts were sent.
type rowMerger struct {
	order  []perdure.TableID
	tables map[perdure.TableID]*mergedRows
}

// mergedRows holds the rows of one table in the order of their first occurrence.
type mergedRows struct {
	index  *table.Index
	values []float32
}

func newRowMerger() *rowMerger { return &rowMerger{tables: map[perdure.TableID]*mergedRows{}} }

// add adds a block of a table whose rows have dim values.
func (n *rowMerger) add(b *wire.Block, dim int) {
	if b.Count == 0 {
		return
	}
	t := n.tables[b.Table]
	if t == nil {
		t = &mergedRows{index: table.NewIndex()}
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

// each calls apply with the merged rows.
func (n *rowMerger) each(apply func(*wire.Block)) {
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
