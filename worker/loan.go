package worker

import (
	"cmp"
	"fmt"

	"github.com/perdure/perdure"
)

// Memory provides the memory that Deltas returns if it is not on the Go heap, for example memory shared with another
// process. The garbage collector does not see the memory, only its keeper: the memory must stay valid until Free, or
// while the keeper is reachable. A client never makes overlapping calls.
type Memory interface {
	// Alloc returns memory for at least n values, and its keeper.
	Alloc(n int) (values []float32, keeper any, err error)
	// Free returns memory that is no longer used.
	Free(keeper any)
}

// Deltas returns memory for the deltas of n consecutive rows of a dense table, starting with row first: n·Dim values,
// row by row. The program fills it before it calls Clock or Flush, which then add the deltas as Inc does, but without a
// copy. The initial content is undefined, and the program must not use the memory after Clock or Flush.
//
// Until then, Inc of these rows fails with perdure.ErrUsage, and reads do not show the deltas as the program's own
// writes. Clock or Flush reports NaN and Inf.
func (t *Table) Deltas(first perdure.RowID, n int) ([]float32, error) {
	if err := t.check(first, n, n*t.spec.Dim); err != nil {
		return nil, err
	}
	l := t.c.lock()
	defer t.c.mu.Unlock()
	if err := cmp.Or(l.requireSlot(incs), l.usable()); err != nil {
		return nil, err
	}
	err := t.eachRun(first, n, func(p *tableShard, at, run, _ int) error { return p.deltas.CheckLend(at, run) })
	if err != nil {
		return nil, fmt.Errorf("%w: table %s", err, t.spec.Name)
	}
	dim := t.spec.Dim
	r, err := t.out.Buffer(n * dim)
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", t.spec.Name, err)
	}
	return r.Values, t.eachRun(first, n, func(p *tableShard, at, run, i int) error {
		p.deltas.Lend(at, run, r, r.Values[i*dim:(i+run)*dim])
		return nil
	})
}

// showLoans makes the deltas that the program computed in place visible in a part's cached rows.
func (t *Table) showLoans(p *tableShard) {
	for _, l := range p.deltas.Loans() {
		t.rows.ApplyDeltas(p.shard, l.At, l.N, l.Values)
	}
}
