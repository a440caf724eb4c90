package worker

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// own is a client as the one that knows what its slot has made: see reads.Own.
type own Client

// Lacks needs c.mu.
func (o *own) Lacks(s perdure.ShardID, t perdure.TableID, from perdure.Clock) bool {
	sh := o.shards[s]
	if n := len(sh.kept); n > 0 && sh.kept[n-1].until() > from {
		return true
	}
	return o.tables[t].parts[s].deltas.n > 0 && from <= o.clock
}

// AddTo puts own updates that rows do not contain on top of a run of them, so that the
// program reads its own writes. It needs c.mu.
func (o *own) AddTo(values []float32, s perdure.ShardID, id perdure.TableID, first perdure.RowID, n int, from perdure.Clock) {
	c, t, sh := (*Client)(o), o.tables[id], o.shards[s]
	p, rows := t.parts[s], wire.Rows{Table: id, First: first, Count: n}
	for _, u := range sh.from(from) {
		if u.clock < from {
			continue // it was merged when all of it was applied; other strategies keep none of it
		}
		if u.repeats {
			t.overlayNewest(p, u, &rows, values)
			continue
		}
		for i := range u.blocks {
			if u.blocks[i].Table == t.id {
				t.overlayBlock(u, i, &rows, values)
			}
		}
	}
	if from > c.clock || sh.building != nil && sh.building.repeats {
		return
	}
	dim := t.spec.Dim
	for i := range n {
		if delta := p.deltas.find(p, first+perdure.RowID(i)); delta != nil {
			table.Apply(t.spec.Rule, dim, values[i*dim:(i+1)*dim], delta, c.clock)
		}
	}
}

// overlayBlock applies what a block of an own update has for a run of rows.
func (t *Table) overlayBlock(u *update, block int, rows *wire.Rows, values []float32) {
	b, dim := &u.blocks[block], t.spec.Dim
	end := rows.First + perdure.RowID(rows.Count-1) // the last: one more may not be a number
	if b.IDs == nil {
		from, to := max(rows.First, b.First), min(end, b.First+perdure.RowID(b.Count-1))
		if from <= to {
			i, j, n := int(from-rows.First)*dim, int(from-b.First)*dim, int(to-from+1)*dim
			table.Apply(t.spec.Rule, dim, values[i:i+n], t.weakened(u, b.Values[j:j+n]), u.clock)
		}
		return
	}
	apply := func(i, j int) {
		table.Apply(t.spec.Rule, dim, values[i*dim:(i+1)*dim], t.weakened(u, b.Values[j*dim:(j+1)*dim]), u.clock)
	}
	if rows.Count < len(b.IDs) {
		index := u.index(block)
		for i := range rows.Count {
			if j, ok := index[rows.First+perdure.RowID(i)]; ok {
				apply(i, int(j))
			}
		}
		return
	}
	for j, id := range b.IDs {
		if id >= rows.First && id <= end {
			apply(int(id-rows.First), j)
		}
	}
}

// overlayNewest applies what an own update with repeated rows has for a run of
// rows: like the server it takes the last that belongs to a row.
func (t *Table) overlayNewest(p *part, u *update, rows *wire.Rows, values []float32) {
	dim := t.spec.Dim
	for i := range rows.Count {
		row := rows.First + perdure.RowID(i)
		var delta []float32
		if u.open {
			delta = p.deltas.find(p, row)
		}
		if delta == nil {
			delta = u.newest(t.id, row, dim)
		}
		if delta != nil {
			table.Apply(t.spec.Rule, dim, values[i*dim:(i+1)*dim], t.weakened(u, delta), u.clock)
		}
	}
}
