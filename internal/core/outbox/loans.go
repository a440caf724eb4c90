package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
)

// Loan is memory for the deltas of N rows of a dense part, from the At-th on. The program has
// it, to compute them where the update will have them.
type Loan struct {
	At, N  int
	Values []float32
	room   *Room
}

// Room is one piece of memory, lent for rows of one part, or of several parts that follow one
// another.
type Room struct {
	Values []float32
	of     *Table
	users  int // loans and updates that it is in
	keeper any // of Memory; nil: it is of Go's own
}

// Memory provides the memory of loans, if that is not Go's own; worker.Memory documents it. It is used with
// the caller's lock held.
type Memory interface {
	// Take returns memory for n values, or more, and what keeps it.
	Take(n int) (values []float32, keeper any, err error)
	// Give takes memory back that nobody uses.
	Give(keeper any)
}

// keepers has what keeps the memory of an update's frames. As their Releaser it can be reached for as
// long as a frame is queued in some connection, and does nothing when it is not any more.
type keepers struct{ of []any }

// Release implements wire.Releaser.
func (*keepers) Release() {}

// lent marks the rows of a loan.
const lent = -1

// ErrLent says that the program has the memory of rows' deltas, and cannot Inc them.
var ErrLent = fmt.Errorf("%w: rows whose deltas the program has from Deltas", perdure.ErrUsage)

// MayLend refuses n rows of a dense part, from the at-th on, some of which were Inc'd in this
// clock or are lent.
func (d *Deltas) MayLend(at, n int) error {
	if d.pos == nil {
		d.pos = make([]int32, d.rows)
	}
	for _, k := range d.pos[at : at+n] {
		if k == lent {
			return ErrLent
		}
		if k != 0 {
			return fmt.Errorf("%w: rows that were Inc'd in this clock", perdure.ErrUsage)
		}
	}
	return nil
}

// MayAdd refuses n rows of a dense part, from the at-th on, some of which are lent.
func (d *Deltas) MayAdd(at, n int) error {
	if len(d.loans) > 0 {
		for _, k := range d.pos[at : at+n] {
			if k == lent {
				return ErrLent
			}
		}
	}
	return nil
}

// MayAdd refuses rows of a dense table some of which are lent.
func (t *Table) MayAdd(rows []perdure.RowID) error {
	lends := func(d *Deltas) bool { return len(d.loans) > 0 }
	if !slices.ContainsFunc(t.parts, lends) {
		return nil
	}
	for _, row := range rows {
		d := t.parts[placement.ShardOf(&t.spec, len(t.parts), row)]
		if err := d.MayAdd(int(row-d.first), 1); err != nil {
			return fmt.Errorf("%w: row %d of table %s", err, row, t.spec.Name)
		}
	}
	return nil
}

// Together returns how many rows, from the first of a list on, follow one another.
func Together(rows []perdure.RowID) (n int) {
	for n = 1; n < len(rows) && rows[n] == rows[0]+perdure.RowID(n); n++ {
	}
	return n
}

// Lend lends memory of a room for n rows, from the at-th on, which MayLend has not refused.
func (d *Deltas) Lend(at, n int, r *Room, values []float32) {
	for j := range n {
		d.pos[at+j] = lent
	}
	r.users++
	d.loans = append(d.loans, Loan{at, n, values, r})
}

// Loans returns what the program computes in place in this clock, and has not handed over.
func (d *Deltas) Loans() []Loan { return d.loans }

// Room returns memory for n values. What it holds is not defined.
func (t *Table) Room(n int) (*Room, error) {
	for i, r := range t.rooms {
		if cap(r.Values) >= n {
			t.rooms = slices.Delete(t.rooms, i, i+1)
			t.idle = min(t.idle, i) // those before it were not wanted
			t.box.spareLeft += r.spare()
			r.Values = r.Values[:n]
			return r, nil
		}
	}
	if m := t.box.limits.Memory; m != nil {
		values, keeper, err := m.Take(n)
		if err != nil {
			return nil, err
		}
		return &Room{of: t, Values: values[:n], keeper: keeper}, nil
	}
	return &Room{of: t, Values: make([]float32, n)}, nil
}

// spare is how much the memory takes of what may be kept to be used again. Of Memory all is kept: to map
// it anew, page by page, would cost what is saved by it.
func (r *Room) spare() int {
	if r.keeper != nil {
		return 0
	}
	return 4 * cap(r.Values)
}

// leave gives the memory back once nobody uses it.
func (r *Room) leave() {
	b := r.of.box
	if r.users--; r.users == 0 && r.spare() <= b.spareLeft {
		b.spareLeft -= r.spare()
		r.of.rooms = append(r.of.rooms, r)
	}
}

// trim lets go what has lain unused since the last call.
func (t *Table) trim() {
	for _, d := range t.parts {
		d.trim()
	}
	for _, r := range t.rooms[:t.idle] {
		t.box.spareLeft += r.spare()
		if r.keeper != nil {
			t.box.limits.Memory.Give(r.keeper)
		}
	}
	t.rooms = slices.Delete(t.rooms, 0, t.idle)
	t.idle = len(t.rooms)
}

// encodeLoans moves a part's loans into an update.
func (d *Deltas) encodeLoans(p *packer) {
	for _, l := range d.loans {
		d.left = p.u
		p.run(d.of.id, d.dim, d.first+perdure.RowID(l.At), l.Values)
		d.gone += l.N // entries that leave as they come
		d.n += l.N
		for j := range l.N {
			d.pos[l.At+j] = int32(d.gone)
		}
		d.runs = append(d.runs, run{l.At, l.N})
		p.u.rooms = append(p.u.rooms, l.room)
		if k := l.room.keeper; k != nil {
			if p.u.keepers == nil {
				p.u.keepers = new(keepers) // of this update alone: its frames have it
			}
			p.u.keepers.of = append(p.u.keepers.of, k)
		}
	}
	clear(d.loans)
	d.loans, d.from = d.loans[:0], len(d.runs)
}

// dropLoans ends the loans of an abandoned clock. The program may write to the memory for
// some time yet: nobody else gets it.
func (d *Deltas) dropLoans() {
	for _, l := range d.loans {
		clear(d.pos[l.At : l.At+l.N])
	}
	clear(d.loans)
	d.loans = d.loans[:0]
}

// NotFinite says which value is NaN or Inf: the at-th of rows, of which it is in the given one.
func (t *Table) NotFinite(at int, row perdure.RowID, v float32) error {
	return fmt.Errorf("%w: value %d of row %d of table %s is %v; nothing of it was taken",
		perdure.ErrNonFinite, at%t.spec.Dim, row, t.spec.Name, v)
}

// CheckFinite refuses what the program has put into the memory that it has, and what it has
// added up, unless it is finite or the table lets all through.
func (t *Table) CheckFinite() error {
	if t.spec.NonFinite == perdure.AllowNonFinite {
		return nil
	}
	// From the end: what is sent first is then still in the processor's cache.
	for _, d := range slices.Backward(t.parts) {
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

// checkValues is how many values are looked at in one go.
const checkValues = 64 << 10

// checkSums refuses deltas that were finite and have added up to what is not. It looks at
// what has not left; rows that are Inc'd again are not sent by themselves.
func (t *Table) checkSums() error {
	for _, d := range t.parts {
		if !d.twice {
			continue
		}
		if at := table.FirstNonFinite(d.values); at >= 0 {
			return t.NotFinite(at, d.row(d.gone+at/t.spec.Dim), d.values[at])
		}
	}
	return nil
}
