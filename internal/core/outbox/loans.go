package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
)

// Loan is memory for the deltas of N rows of a dense part, starting at row At. The program computes them there, and the
// update uses the same memory.
type Loan struct {
	At, N  int
	Values []float32
	buffer *Buffer
}

// Buffer is a piece of memory, lent for rows of one part, or of several consecutive parts.
type Buffer struct {
	Values []float32
	of     *Table
	users  int // number of loans and updates that use it
	keeper any // of Memory; nil: it is on Go's heap
}

// Memory provides memory that is shared with another process. The garbage collector does not manage this memory, but it
// does manage its keeper: the memory exists until the keeper is unreachable, or until Free. The caller's lock is held
// during the calls.
type Memory interface {
	// Alloc returns memory for at least n values, and its keeper.
	Alloc(n int) (values []float32, keeper any, err error)
	// Free returns memory that is no longer used.
	Free(keeper any)
}

// keepers holds the keepers of an update's frames. As their Releaser it stays reachable while a frame is queued in a
// connection. Release does nothing.
type keepers struct{ of []any }

// Release implements wire.Releaser.
func (*keepers) Release() {}

// lent marks the rows of a loan.
const lent = -1

// ErrLent means that the rows cannot be Inc'd, because the program holds the memory of their deltas.
var ErrLent = fmt.Errorf("%w: the program still holds the memory that Deltas returned for these rows",
	perdure.ErrUsage)

// errRounded means that rows were Inc'd again in a clock after Flush has rounded them.
var errRounded = fmt.Errorf("%w: Flush has already rounded the deltas of these rows in this clock; add all of them "+
	"before it", perdure.ErrUsage)

// CheckLend returns an error if any of n rows of a dense part, starting at row at, was Inc'd in this clock or is lent.
func (d *Deltas) CheckLend(at, n int) error {
	if d.pos == nil {
		d.pos = make([]int32, d.rows)
	}
	for _, k := range d.pos[at : at+n] {
		if k == lent {
			return ErrLent
		}
		if k != 0 {
			return fmt.Errorf("%w: Inc was already called for some of these rows in this clock", perdure.ErrUsage)
		}
	}
	return nil
}

// CheckAdd returns an error if any of n rows of a dense part, starting at row at, is lent, or has been rounded.
func (d *Deltas) CheckAdd(at, n int) error {
	if !d.checksAdds() {
		return nil
	}
	for _, k := range d.pos[at : at+n] {
		if k == lent {
			return ErrLent
		}
		if k > 0 && int(k) <= d.numSent && d.rounds() {
			return errRounded
		}
	}
	return nil
}

// checksAdds reports whether CheckAdd may return an error.
func (d *Deltas) checksAdds() bool {
	return len(d.loans) > 0 || d.numSent > 0 && d.rounds() && d.index == nil
}

// CheckAdd returns an error if any of the rows of a dense table is lent, or has been rounded.
func (t *Table) CheckAdd(rows []perdure.RowID) error {
	if !slices.ContainsFunc(t.deltas, (*Deltas).checksAdds) {
		return nil
	}
	for _, row := range rows {
		d := t.deltas[placement.ShardOf(&t.spec, len(t.deltas), row)]
		if err := d.CheckAdd(int(row-d.first), 1); err != nil {
			return fmt.Errorf("%w: row %d of table %s", err, row, t.spec.Name)
		}
	}
	return nil
}

// RunLength returns the length of the run of consecutive rows at the start of a list.
func RunLength(rows []perdure.RowID) (n int) {
	for n = 1; n < len(rows) && rows[n] == rows[0]+perdure.RowID(n); n++ {
	}
	return n
}

// Lend lends memory of a room for n rows, starting at row at. CheckLend must have allowed it.
func (d *Deltas) Lend(at, n int, r *Buffer, values []float32) {
	for j := range n {
		d.pos[at+j] = lent
	}
	r.users++
	d.loans = append(d.loans, Loan{at, n, values, r})
}

// Loans returns the loans that the program has not handed over in this clock.
func (d *Deltas) Loans() []Loan { return d.loans }

// Buffer returns memory for n values, with undefined contents.
func (t *Table) Buffer(n int) (*Buffer, error) {
	if i := t.bestBuffer(n); i >= 0 {
		r := t.freeBuffers[i]
		t.freeBuffers = slices.Delete(t.freeBuffers, i, i+1)
		t.idle = min(t.idle, i) // the buffers before it were not needed
		t.outbox.spareLeft += r.spare()
		r.Values = r.Values[:n]
		return r, nil
	}
	if m := t.outbox.limits.Memory; m != nil {
		values, keeper, err := m.Alloc(n)
		if err != nil {
			return nil, err
		}
		return &Buffer{of: t, Values: values[:n], keeper: keeper}, nil
	}
	return &Buffer{of: t, Values: make([]float32, n)}, nil
}

// bestBuffer returns the index of the smallest free buffer for n values, or -1. Of several it returns the last one, so
// that buffers that are no longer needed stay at the start, where trim finds them.
func (t *Table) bestBuffer(n int) int {
	best := -1
	for i, r := range slices.Backward(t.freeBuffers) {
		c := cap(r.Values)
		if c < n || best >= 0 && c >= cap(t.freeBuffers[best].Values) {
			continue
		}
		if best = i; c == n {
			break
		}
	}
	return best
}

// spare returns how many bytes of the reuse limit the memory takes. Memory from Memory is always kept, because mapping
// it again page by page would cost what reuse saves.
func (r *Buffer) spare() int {
	if r.keeper != nil {
		return 0
	}
	return 4 * cap(r.Values)
}

// leave reuses the memory once it has no more users.
func (r *Buffer) leave() {
	b := r.of.outbox
	if r.users--; r.users == 0 && r.spare() <= b.spareLeft {
		b.spareLeft -= r.spare()
		r.of.freeBuffers = append(r.of.freeBuffers, r)
	}
}

// trim releases memory that has not been used since the last call.
func (t *Table) trim() {
	for _, d := range t.deltas {
		d.trim()
	}
	for _, r := range t.freeBuffers[:t.idle] {
		t.outbox.spareLeft += r.spare()
		if r.keeper != nil {
			t.outbox.limits.Memory.Free(r.keeper)
		}
	}
	t.freeBuffers = slices.Delete(t.freeBuffers, 0, t.idle)
	t.idle = len(t.freeBuffers)
}

// encodeLoans moves a part's loans into an update.
func (d *Deltas) encodeLoans(p *packer) {
	for _, l := range d.loans {
		d.sentIn = p.u
		p.run(d.of, d.first+perdure.RowID(l.At), l.Values)
		d.numSent += l.N // these entries are sent as soon as they are added
		d.n += l.N
		for j := range l.N {
			d.pos[l.At+j] = int32(d.numSent)
		}
		d.runs = append(d.runs, run{l.At, l.N})
		if d.rounds() {
			l.buffer.leave()
			continue
		}
		p.u.buffers = append(p.u.buffers, l.buffer)
		if k := l.buffer.keeper; k != nil {
			if p.u.keepers == nil {
				p.u.keepers = new(keepers) // for this update alone: its frames refer to it
			}
			p.u.keepers.of = append(p.u.keepers.of, k)
		}
	}
	clear(d.loans)
	d.loans, d.from = d.loans[:0], len(d.runs)
}

// dropLoans ends the loans of an abandoned clock. The memory is not reused, because the program may still write to it.
func (d *Deltas) dropLoans() {
	for _, l := range d.loans {
		clear(d.pos[l.At : l.At+l.N])
	}
	clear(d.loans)
	d.loans = d.loans[:0]
}

// NotFinite returns the error for a value that is NaN or Inf: at is its position among the values, row the row that
// holds it.
func (t *Table) NotFinite(at int, row perdure.RowID, v float32) error {
	return fmt.Errorf("%w: value %d of row %d of table %s is %v; the call had no effect",
		perdure.ErrNonFinite, at%t.spec.Dim, row, t.spec.Name, v)
}

// CheckFinite returns an error if the program has computed values in lent memory, or added up values, that are not
// finite, unless the table allows them.
func (t *Table) CheckFinite() error {
	if t.spec.NonFinite == perdure.AllowNonFinite {
		return nil
	}
	// Check from the end, so that the values that are sent first are still in the processor's cache.
	for _, d := range slices.Backward(t.deltas) {
		for _, l := range slices.Backward(d.loans) {
			for end := len(l.Values); end > 0; end -= min(end, checkValues) {
				from := end - min(end, checkValues)
				if at := table.FirstNonFinite(l.Values[from:end]); at >= 0 {
					at += from
					return t.NotFinite(at, d.first+perdure.RowID(l.At+at/t.spec.Dim), l.Values[at])
				}
			}
		}
	}
	return t.checkSums()
}

// checkValues is how many values are checked per call.
const checkValues = 64 << 10

// checkSums returns an error for finite deltas whose sum is not finite. It checks deltas that have not been sent; rows
// that are Inc'd again are not sent separately.
func (t *Table) checkSums() error {
	for _, d := range t.deltas {
		if !d.hasRepeats {
			continue
		}
		if at := table.FirstNonFinite(d.values); at >= 0 {
			return t.NotFinite(at, d.row(d.numSent+at/t.spec.Dim), d.values[at])
		}
	}
	return nil
}
