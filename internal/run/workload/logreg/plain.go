package logreg

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
	"github.com/perdure/perdure/internal/data/table"
)

// Plain trains on one thread with its own table. Data, order and gradient are those of a workload with one slot. It is
// the baseline for speed, and is not safe for concurrent use.
type Plain struct {
	*model
	part *table.Part
	now  perdure.Clock
	got  []float32
}

// NewPlain returns a trainer at clock 0.
func NewPlain(data *dataset.SparseSet, seed uint64, size int, rule perdure.Rule) (*Plain, error) {
	m, err := newModel(data, seed, 1, size)
	if err != nil {
		return nil, err
	}
	spec := perdure.TableSpec{Name: Table, Rows: int64(data.Features + 1), Dim: m.dim, Rule: rule}
	return &Plain{model: m, part: table.New(spec, 0, seed, 0, int(spec.Rows))}, nil
}

// Run trains for a number of clocks. It returns the total number of features in the examples, and the mean loss.
func (p *Plain) Run(clocks perdure.Clock) (nonzeros int, loss float64, err error) {
	examples := 0
	for range clocks {
		list := p.order.Batch(0, p.now)
		p.need.of(&p.data.Train, list)
		n := len(p.need.list) * p.dim
		p.got = slices.Grow(p.got[:0], n)[:n]
		if err := p.part.ReadRows(p.got, 0, p.need.list, len(p.need.list)); err != nil {
			return 0, 0, err
		}
		p.gradient = slices.Grow(p.gradient[:0], n)[:n]
		l, nz := p.losses(p.got, &p.data.Train, list)
		if err := p.part.ApplyRows(0, p.need.list, len(p.need.list), p.gradient, p.now); err != nil {
			return 0, 0, err
		}
		nonzeros, loss, examples = nonzeros+nz, loss+l, examples+len(list)
		p.now++
	}
	return nonzeros, loss / float64(max(examples, 1)), nil
}
