package server

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/table"
	"github.com/perdure/perdure/wire"
)

// sums add up the deltas of an update that has rows more than once, because parts
// of it left before their sender knew that it would touch them again: it must
// have the effect that it would have had as a whole.
type sums struct {
	order  []perdure.TableID
	tables map[perdure.TableID]*sum
}

// sum is one table's: rows in the order in which they first come.
type sum struct {
	dim    int
	index  *table.Index
	values []float32
}

func newSums() *sums { return &sums{tables: map[perdure.TableID]*sum{}} }

// add adds a block of a table with rows of dim values.
func (s *sums) add(b *wire.Block, dim int) {
	t := s.tables[b.Table]
	if t == nil {
		t = &sum{dim: dim, index: table.NewIndex()}
		s.tables[b.Table] = t
		s.order = append(s.order, b.Table)
	}
	for i := range b.Count {
		delta := b.Values[i*dim : (i+1)*dim]
		at, added := t.index.Add(b.ID(i))
		if added {
			t.values = append(t.values, delta...)
			continue
		}
		table.Apply(perdure.Rule{Kind: perdure.RuleAdd}, dim, t.values[at*dim:(at+1)*dim], delta, 0)
	}
}

// each hands on what has been added up.
func (s *sums) each(apply func(*wire.Block)) {
	for _, id := range s.order {
		t := s.tables[id]
		for from := 0; from < t.index.Len(); {
			ids := t.index.IDs(from, t.index.Len())
			values := t.values[from*t.dim : (from+len(ids))*t.dim]
			apply(&wire.Block{Rows: wire.Rows{Table: id, Count: len(ids), IDs: ids}, Values: values})
			from += len(ids)
		}
	}
}
