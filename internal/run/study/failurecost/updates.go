package failurecost

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
)

// slotTables implements the tables for a slot. Reads return the current rows; deltas are kept until the clock ends.
type slotTables struct {
	of     *Training
	tables []*deltas
	byName map[string]*deltas
	ids    []perdure.RowID
	weight float64 // weight of the clock: its examples
}

// deltas holds what a slot has added to the rows of a table in the current clock, in the order in which rows were first
// touched.
type deltas struct {
	n      int // index of the table
	spec   perdure.TableSpec
	place  map[perdure.RowID]int // index of a row among the deltas
	rows   []perdure.RowID
	values []float32
}

func newSlotTables(t *Training) *slotTables {
	u := &slotTables{of: t, byName: map[string]*deltas{}}
	for n, spec := range t.Specs {
		d := &deltas{n: n, spec: spec, place: map[perdure.RowID]int{}}
		u.tables = append(u.tables, d)
		u.byName[spec.Name] = d
	}
	return u
}

// take copies the deltas of another slot that are not yet applied.
func (u *slotTables) take(of *slotTables) {
	for n, d := range of.tables {
		maps.Copy(u.tables[n].place, d.place)
		u.tables[n].rows, u.tables[n].values = slices.Clone(d.rows), slices.Clone(d.values)
	}
}

func (u *slotTables) clear() {
	for _, d := range u.tables {
		clear(d.place)
		d.rows, d.values = d.rows[:0], d.values[:0]
	}
}

func (u *slotTables) find(name string) (*deltas, error) {
	if d := u.byName[name]; d != nil {
		return d, nil
	}
	return nil, perdure.Usagef("table %q does not exist", name)
}

// list returns the IDs of n rows from first on. The result is valid until the next call.
func (u *slotTables) list(first perdure.RowID, n int) []perdure.RowID {
	u.ids = u.ids[:0]
	for i := range n {
		u.ids = append(u.ids, first+perdure.RowID(i))
	}
	return u.ids
}

// rows returns the rows that the slot reads, by shard and table.
func (u *slotTables) rows() [][]*table.Part {
	if u.of.read != nil {
		return u.of.read
	}
	return u.of.parts
}

// Get implements workload.Tables.
func (u *slotTables) Get(ctx context.Context, name string, first perdure.RowID, dst []float32) error {
	d, err := u.find(name)
	if err != nil {
		return err
	}
	if d.spec.Sparse {
		return u.GetRows(ctx, name, u.list(first, len(dst)/d.spec.Dim), dst)
	}
	rows, dim := len(dst)/d.spec.Dim, d.spec.Dim
	for _, parts := range u.rows() {
		p := parts[d.n]
		from, to := max(first, p.First), min(first+perdure.RowID(rows), p.First+perdure.RowID(p.Rows))
		if from >= to {
			continue
		}
		of := dst[int(from-first)*dim : int(to-first)*dim]
		if err := p.ReadRows(of, from, nil, int(to-from)); err != nil {
			return err
		}
	}
	return nil
}

// GetRows implements workload.Tables.
func (u *slotTables) GetRows(_ context.Context, name string, rows []perdure.RowID, dst []float32) error {
	d, err := u.find(name)
	if err != nil {
		return err
	}
	for i, row := range rows {
		p := u.rows()[placement.ShardOf(&d.spec, u.of.Job.Shards, row)][d.n]
		var ids []perdure.RowID
		if d.spec.Sparse {
			ids = rows[i : i+1]
		}
		if err := p.ReadRows(dst[i*d.spec.Dim:(i+1)*d.spec.Dim], row, ids, 1); err != nil {
			return err
		}
	}
	return nil
}

// Inc implements workload.Tables.
func (u *slotTables) Inc(ctx context.Context, name string, first perdure.RowID, delta []float32) error {
	d, err := u.find(name)
	if err != nil {
		return err
	}
	return u.IncRows(ctx, name, u.list(first, len(delta)/d.spec.Dim), delta)
}

// IncRows implements workload.Tables.
func (u *slotTables) IncRows(_ context.Context, name string, rows []perdure.RowID, delta []float32) error {
	d, err := u.find(name)
	if err != nil {
		return err
	}
	if at := table.FirstNonFinite(delta); at >= 0 && d.spec.NonFinite != perdure.AllowNonFinite {
		return fmt.Errorf("%w: row %d of table %s", perdure.ErrNonFinite, rows[at/d.spec.Dim], name)
	}
	for i, row := range rows {
		values := delta[i*d.spec.Dim : (i+1)*d.spec.Dim]
		at, touched := d.place[row]
		if !touched {
			d.place[row] = len(d.rows)
			d.rows = append(d.rows, row)
			d.values = append(d.values, values...)
			continue
		}
		for k, v := range values {
			d.values[at*d.spec.Dim+k] += v
		}
	}
	return nil
}

// applyTo applies the deltas to the rows of a shard's part.
func (d *deltas) applyTo(t *Training, shard int, p *table.Part, clock perdure.Clock) error {
	return d.each(t, shard, p, func(first perdure.RowID, ids []perdure.RowID, n int, values []float32) error {
		return t.applyRows(shard, perdure.TableID(d.n), p, first, ids, n, values, clock)
	})
}

// each passes the deltas for a shard's part to do, in runs of rows or, in a sparse table, row by row.
func (d *deltas) each(
	t *Training, shard int, p *table.Part,
	do func(first perdure.RowID, ids []perdure.RowID, n int, values []float32) error,
) error {
	dim := d.spec.Dim
	for i := 0; i < len(d.rows); {
		first := d.rows[i]
		if placement.ShardOf(&d.spec, t.Job.Shards, first) != perdure.ShardID(shard) {
			i++
			continue
		}
		n := 1
		if !d.spec.Sparse { // apply runs of rows together; most updates consist of them
			end := p.First + perdure.RowID(p.Rows)
			for i+n < len(d.rows) && d.rows[i+n] == first+perdure.RowID(n) && d.rows[i+n] < end {
				n++
			}
		}
		var ids []perdure.RowID
		if d.spec.Sparse {
			ids = d.rows[i : i+1]
		}
		if err := do(first, ids, n, d.values[i*dim:(i+n)*dim]); err != nil {
			return err
		}
		i += n
	}
	return nil
}
