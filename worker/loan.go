package worker

import (
	"cmp"
	"fmt"

	"github.com/perdure/perdure"
)

// Memory provides what Deltas lends, if that is not Go's own: memory that another process shares. The
// garbage collector does not see it, only its keeper: the memory must stay valid while the keeper can be
// reached, or until Give. Calls of one client never overlap.
type Memory interface {
	// Take returns memory for at least n values, and its keeper.
	Take(n int) (values []float32, keeper any, err error)
	// Give takes memory back that is no longer used.
	Give(keeper any)
}

// Deltas returns memory for the deltas of n consecutive rows of a dense table, from first on:
// n·Dim values, row by row. The program fills it before it calls Clock or Flush: then it counts
// as Inc'd, without a copy. What the memory holds at first is not defined, and after Clock or
// Flush it is not the program's any more. Until then the rows cannot be Inc'd (perdure.ErrUsage),
// and the program does not read the deltas as its own writes. Clock or Flush finds NaN and Inf.
func (t *Table) Deltas(first perdure.RowID, n int) ([]float32, error) {
	if err := t.check(first, n, n*t.spec.Dim); err != nil {
		return nil, err
	}
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := cmp.Or(l.asSlot(incs), l.usable()); err != nil {
		return nil, err
	}
	err := t.eachRun(first, n, func(p *part, at, run, _ int) error { return p.deltas.MayLend(at, run) })
	if err != nil {
		return nil, fmt.Errorf("%w: table %s", err, t.spec.Name)
	}
	dim := t.spec.Dim
	r, err := t.out.Room(n * dim)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", t.spec.Name, err)
	}
	return r.Values, t.eachRun(first, n, func(p *part, at, run, i int) error {
		p.deltas.Lend(at, run, r, r.Values[i*dim:(i+run)*dim])
		return nil
	})
}

// showLoans shows what the program has computed in place in a part's cached rows.
func (t *Table) showLoans(p *part) {
	for _, l := range p.deltas.Loans() {
		t.rows.Show(p.shard, l.At, l.N, l.Values)
	}
}
