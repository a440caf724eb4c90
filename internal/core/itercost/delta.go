package itercost

import (
	"errors"
	"fmt"

	"gonum.org/v1/gonum/floats"
)

// ErrTables is returned if restored rows do not match the true ones.
var ErrTables = errors.New("itercost: tables do not match")

// Float is the type of a row's values.
type Float interface{ ~float32 | ~float64 }

// Table holds consecutive rows of Dim values each.
type Table[F Float] struct {
	Name   string
	Dim    int
	Values []F
}

// TableDelta is the perturbation of one table: the norm of each row's difference.
type TableDelta struct {
	Name string
	Rows []float64
}

// Norm returns ‖δ‖ of the table.
func (t TableDelta) Norm() float64 { return floats.Norm(t.Rows, 2) }

// Delta is a perturbation δ of all parameters, by table. Norms are Euclidean.
type Delta []TableDelta

// Between returns the perturbation between the true rows, which the undisturbed twin has at the same clock, and the
// restored rows. Both must have the same tables in the same order.
func Between[F Float](truth, restored []Table[F]) (Delta, error) {
	if len(truth) != len(restored) {
		return nil, fmt.Errorf("%w: expected %d tables, but %d were restored", ErrTables, len(truth), len(restored))
	}
	delta := make(Delta, len(truth))
	for i, t := range truth {
		r := restored[i]
		switch {
		case t.Name != r.Name:
			return nil, fmt.Errorf("%w: table %d is %s, but the restored one is %s", ErrTables, i, t.Name, r.Name)
		case t.Dim < 1 || t.Dim != r.Dim:
			return nil, fmt.Errorf("%w: table %s has %d values per row, but the restored one has %d",
				ErrTables, t.Name, t.Dim,
				r.Dim)
		case len(t.Values) != len(r.Values) || len(t.Values)%t.Dim != 0:
			return nil, fmt.Errorf("%w: table %s has %d values, but the restored one has %d, in rows of %d",
				ErrTables, t.Name,
				len(t.Values), len(r.Values), t.Dim)
		}
		rows, bad := rowNorms(t.Values, r.Values, t.Dim)
		if bad >= 0 {
			return nil, fmt.Errorf("%w: row %d of table %s contains a value that is not finite", ErrTables, bad, t.Name)
		}
		delta[i] = TableDelta{t.Name, rows}
	}
	return delta, nil
}

// rowNorms returns the norm of each row's difference. bad is the first row with a value that is not finite, or −1.
func rowNorms[F Float](truth, restored []F, dim int) (norms []float64, bad int) {
	norms, row := make([]float64, len(truth)/dim), make([]float64, dim)
	for i := range norms {
		for j := range dim {
			a, b := float64(truth[i*dim+j]), float64(restored[i*dim+j])
			if !finite(a) || !finite(b) {
				return nil, i
			}
			row[j] = b - a
		}
		norms[i] = floats.Norm(row, 2)
	}
	return norms, -1
}

// Norm returns ‖δ‖ of all tables together.
func (d Delta) Norm() float64 {
	tables := make([]float64, len(d))
	for i, t := range d {
		tables[i] = t.Norm()
	}
	return floats.Norm(tables, 2)
}

// Partial returns δ' of partial recovery: only lost rows are restored, from the same saved values, and all others keep
// the true ones. So ‖δ'‖ ≤ ‖δ‖. Deltas from different saved values have no such order.
func (d Delta) Partial(lost func(table string, row int) bool) Delta {
	part := make(Delta, len(d))
	for i, t := range d {
		part[i] = TableDelta{t.Name, make([]float64, len(t.Rows))}
		for row, norm := range t.Rows {
			if lost(t.Name, row) {
				part[i].Rows[row] = norm
			}
		}
	}
	return part
}

// ExpectedSquare returns E‖δ'‖² = p‖δ‖²: the mean square of a partial recovery's perturbation if each row is lost with
// probability p. It does not matter which rows are lost together: single rows, shards, or a fixed share p of all.
func (d Delta) ExpectedSquare(p float64) float64 {
	norm := d.Norm()
	return p * norm * norm
}

// At returns the perturbation at a clock, for a [Bound].
func (d Delta) At(clock int) Perturbation { return Perturbation{clock, d.Norm()} }
