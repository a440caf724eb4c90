package table

import (
	"errors"
	"fmt"
	"math"

	"github.com/perdure/perdure"
)

// Errors that a peer's message can cause.
var (
	ErrRow   = errors.New("table: row not on this shard")
	ErrShape = errors.New("table: wrong number of values")
)

// Part is one shard's part of a table: the rows First … First+Rows-1.
type Part struct {
	Spec   perdure.TableSpec
	First  perdure.RowID
	Rows   int
	Values []float32 // Rows × Spec.Dim, row after row
}

// New makes a part with its initial values, which depend on the job's seed, the
// table's number and the row only.
func New(spec perdure.TableSpec, id perdure.TableID, seed uint64, first perdure.RowID, rows int) *Part {
	p := &Part{Spec: spec, First: first, Rows: rows, Values: make([]float32, rows*spec.Dim)}
	if spec.Init.Kind == perdure.InitUniform || spec.Init.Kind == perdure.InitNormal {
		for i := range rows {
			fillRow(p.Values[i*spec.Dim:][:spec.Dim], spec.Init, rowSeed(seed, id, first+perdure.RowID(i)))
		}
	}
	return p
}

// Row returns a row's values, which alias the slab.
func (p *Part) Row(id perdure.RowID) ([]float32, error) { return p.Run(id, 1) }

// Run returns the values of n consecutive rows, which alias the slab.
func (p *Part) Run(first perdure.RowID, n int) ([]float32, error) {
	if first < p.First || n < 0 || n > p.Rows || first-p.First > perdure.RowID(p.Rows-n) {
		return nil, fmt.Errorf("%w: rows %d to %d of table %s; the shard holds %d to %d",
			ErrRow, first, first+perdure.RowID(n)-1, p.Spec.Name, p.First, p.First+perdure.RowID(p.Rows)-1)
	}
	at := int(first-p.First) * p.Spec.Dim
	return p.Values[at : at+n*p.Spec.Dim], nil
}

// CheckRows reports whether deltas of the given number of values could be
// applied to the rows: so that an update is refused before any part of it is.
// The rows are the count ids, or count consecutive ones from first where ids is
// nil.
func (p *Part) CheckRows(first perdure.RowID, ids []perdure.RowID, count, values int) error {
	switch {
	case ids != nil && len(ids) != count:
		return fmt.Errorf("%w: %d rows are announced and %d named of table %s", ErrShape, count, len(ids), p.Spec.Name)
	case ids == nil:
		if _, err := p.Run(first, count); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if _, err := p.Row(id); err != nil {
			return err
		}
	}
	if values != count*p.Spec.Dim {
		return fmt.Errorf("%w: %d for %d rows of table %s of %d each", ErrShape, values, count, p.Spec.Name, p.Spec.Dim)
	}
	return nil
}

// ApplyRows applies deltas, row after row, of an update of the given clock. The
// rows are named as for CheckRows; nothing is applied if they are refused.
func (p *Part) ApplyRows(first perdure.RowID, ids []perdure.RowID, count int, delta []float32, clock perdure.Clock) error {
	if err := p.CheckRows(first, ids, count, len(delta)); err != nil {
		return err
	}
	if ids == nil {
		run, _ := p.Run(first, count)
		Apply(p.Spec.Rule, p.Spec.Dim, run, delta, clock)
		return nil
	}
	dim := p.Spec.Dim
	for i, id := range ids {
		row, _ := p.Row(id)
		Apply(p.Spec.Rule, dim, row, delta[i*dim:(i+1)*dim], clock)
	}
	return nil
}

// rowSeed mixes its arguments into the start of a row's random sequence.
func rowSeed(seed uint64, id perdure.TableID, row perdure.RowID) uint64 {
	return mix(mix(seed^0x9e3779b97f4a7c15) ^ mix(uint64(id)<<48^uint64(row)))
}

// mix is the finaliser of SplitMix64.
func mix(z uint64) uint64 {
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}

// fillRow fills a row with the initialiser's distribution from a seed.
func fillRow(row []float32, init perdure.Init, seed uint64) {
	unit := func() float64 { // SplitMix64, uniform in (0, 1)
		seed += 0x9e3779b97f4a7c15
		return (float64(mix(seed)>>11) + 0.5) / (1 << 53)
	}
	for i := range row {
		if init.Kind == perdure.InitUniform {
			row[i] = float32(init.Scale * (2*unit() - 1))
			continue
		}
		r, angle := math.Sqrt(-2*math.Log(unit())), 2*math.Pi*unit() // Box-Muller
		row[i] = float32(init.Scale * r * math.Cos(angle))
	}
}
