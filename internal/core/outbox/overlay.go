package outbox

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// A program reads its own writes. Rows from servers lack the updates that had not reached the servers, so these updates
// are applied to the rows here.

// HasUpdates reports whether there are updates of a shard, or deltas of its part of a table, of clocks from the given
// one on: an answer with the clocks below does not contain them.
func (b *Outbox) HasUpdates(s perdure.ShardID, t perdure.TableID, from perdure.Clock) bool {
	kept := b.shards[s].kept
	if n := len(kept); n > 0 && kept[n-1].until() > from {
		return true
	}
	return b.tables[t].deltas[s].n > 0 && from <= b.clock
}

// ApplyTo applies the updates and deltas that HasUpdates describes to n rows of a shard, starting at first, whose
// values are given.
func (b *Outbox) ApplyTo(
	values []float32, shard perdure.ShardID, t perdure.TableID, first perdure.RowID, n int, from perdure.Clock,
) {
	s, d := b.shards[shard], b.tables[t].deltas[shard]
	rows := wire.Rows{Table: t, First: first, Count: n}
	for _, u := range s.kept.from(from) {
		if u.clock < from {
			continue // it was merged after all of it was applied; other strategies keep none of it
		}
		if u.repeats {
			d.overlayNewest(u, &rows, values)
			continue
		}
		for i := range u.blocks {
			if u.blocks[i].Table == t {
				d.overlayBlock(u, i, &rows, values)
			}
		}
	}
	if from > b.clock || s.building != nil && s.building.repeats {
		return
	}
	for i := range n {
		if delta := d.Find(first + perdure.RowID(i)); delta != nil {
			table.Apply(d.of.spec.Rule, d.dim, values[i*d.dim:(i+1)*d.dim], delta, b.clock)
		}
	}
}

// overlayBlock applies a block of an update to a run of rows.
func (d *Deltas) overlayBlock(u *Update, block int, rows *wire.Rows, values []float32) {
	b, dim := &u.blocks[block], d.dim
	end := rows.First + perdure.RowID(rows.Count-1) // the last row: the next number may overflow
	if b.IDs == nil {
		from, to := max(rows.First, b.First), min(end, b.First+perdure.RowID(b.Count-1))
		if from <= to {
			i, j, n := int(from-rows.First)*dim, int(from-b.First)*dim, int(to-from+1)*dim
			d.apply(u, values[i:i+n], b.Values[j:j+n])
		}
		return
	}
	if rows.Count < len(b.IDs) {
		index := u.index(block)
		for i := range rows.Count {
			if j, ok := index.at(rows.First + perdure.RowID(i)); ok {
				d.apply(u, values[i*dim:(i+1)*dim], b.Values[j*dim:(j+1)*dim])
			}
		}
		return
	}
	for j, id := range b.IDs {
		if id >= rows.First && id <= end {
			i := int(id - rows.First)
			d.apply(u, values[i*dim:(i+1)*dim], b.Values[j*dim:(j+1)*dim])
		}
	}
}

// overlayNewest applies an update with repeated rows to a run of rows. Like the server, it applies the last delta of
// each row.
func (d *Deltas) overlayNewest(u *Update, rows *wire.Rows, values []float32) {
	dim := d.dim
	for i := range rows.Count {
		row := rows.First + perdure.RowID(i)
		var delta []float32
		if u.phase == Open {
			delta = d.Find(row)
		}
		if delta == nil {
			delta = u.newest(d.of.id, row, dim)
		}
		if delta != nil {
			d.apply(u, values[i*dim:(i+1)*dim], delta)
		}
	}
}

// apply applies deltas of an update as servers do, as far as that is known here. It does not modify the deltas.
func (d *Deltas) apply(u *Update, values, deltas []float32) {
	if b := d.of.outbox; u.weight != 1 && b.jobView.job.StaleScale.AppliesTo(d.of.spec.Rule) {
		b.weak = append(b.weak[:0], deltas...)
		for i := range b.weak {
			b.weak[i] *= u.weight
		}
		deltas = b.weak
	}
	table.Apply(d.of.spec.Rule, d.dim, values, deltas, u.clock)
}
