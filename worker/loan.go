package worker

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// loan is memory for the deltas of a run of a part's rows that the program has,
// to compute them where the update will have them.
type loan struct {
	span
	values []float32
	of     *room
}

// room is one piece of memory, lent for rows of one part or of several that
// follow one another.
type room struct {
	t      *Table
	values []float32
	users  int // loans and updates that it is in
}

// Deltas returns memory for the deltas of n consecutive rows of a dense table from
// first on, which the program fills before it calls Clock or Flush: then it
// counts as Inc'd, without a copy. What the memory holds at first is not
// defined, and after Clock or Flush it is not the program's any more. Until then
// the rows cannot be Inc'd, and the program does not read the deltas as its own
// writes. NaN or Inf is found by Clock or Flush.
func (t *Table) Deltas(first perdure.RowID, n int) ([]float32, error) {
	if err := t.check(first, n, n*t.spec.Dim); err != nil {
		return nil, err
	}
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := c.mayInc(); err != nil {
		return nil, err
	}
	if err := t.eachRun(first, n, func(p *part, at, run, _ int) error { return p.deltas.untouched(at, run) }); err != nil {
		return nil, fmt.Errorf("%w: table %s", err, t.spec.Name)
	}
	dim := t.spec.Dim
	r := t.room(n * dim)
	return r.values, t.eachRun(first, n, func(p *part, at, run, i int) error {
		d := &p.deltas
		for j := range run {
			d.pos[at+j] = lent
		}
		r.users++
		d.loans = append(d.loans, loan{span{p, at, run}, r.values[i*dim : (i+run)*dim], r})
		return nil
	})
}

// lent marks the rows of a loan.
const lent = -1

var errLent = fmt.Errorf("%w: rows whose deltas the program has from Deltas", perdure.ErrUsage)

// untouched refuses a run of rows some of which were Inc'd in this clock or are
// lent.
func (d *deltas) untouched(at, n int) error {
	if d.pos == nil {
		d.pos = make([]int32, d.rows)
	}
	for _, k := range d.pos[at : at+n] {
		if k == lent {
			return errLent
		}
		if k != 0 {
			return fmt.Errorf("%w: rows that were Inc'd in this clock", perdure.ErrUsage)
		}
	}
	return nil
}

// mayAdd refuses a run of rows some of which are lent.
func (d *deltas) mayAdd(at, n int) error {
	if len(d.loans) > 0 {
		for _, k := range d.pos[at : at+n] {
			if k == lent {
				return errLent
			}
		}
	}
	return nil
}

// room returns memory for n values.
func (t *Table) room(n int) *room {
	for i, r := range t.rooms {
		if cap(r.values) >= n {
			t.rooms = slices.Delete(t.rooms, i, i+1)
			t.idleRooms = min(t.idleRooms, i) // those before it were not wanted
			t.c.spareLeft += 4 * cap(r.values)
			r.values = r.values[:n]
			return r
		}
	}
	return &room{t: t, values: make([]float32, n)}
}

// trimRooms lets go what has lain unused since the last call.
func (t *Table) trimRooms() {
	for _, r := range t.rooms[:t.idleRooms] {
		t.c.spareLeft += 4 * cap(r.values)
	}
	t.rooms = slices.Delete(t.rooms, 0, t.idleRooms)
	t.idleRooms = len(t.rooms)
}

// leave gives the memory back once nobody uses it.
func (r *room) leave() {
	if r.users--; r.users == 0 && 4*cap(r.values) <= r.t.c.spareLeft {
		r.t.c.spareLeft -= 4 * cap(r.values)
		r.t.rooms = append(r.t.rooms, r)
	}
}

// checkFinite refuses what the program has put into the memory that it has, and
// what it has added up, unless it is finite or the table lets all through.
func (t *Table) checkFinite() error {
	if t.spec.NonFinite == perdure.AllowNonFinite {
		return nil
	}
	// From the end: what is sent first is then still in the processor's cache.
	for _, p := range slices.Backward(t.parts) {
		for _, l := range slices.Backward(p.deltas.loans) {
			for end := len(l.values); end > 0; end -= min(end, checkValues) {
				from := end - min(end, checkValues)
				if at := table.FirstNonFinite(l.values[from:end]); at >= 0 {
					at += from
					return t.notFinite(at, p.first+perdure.RowID(l.at+at/t.spec.Dim), l.values[at])
				}
			}
		}
	}
	return t.checkSums()
}

// checkValues is how many values are looked at in one go.
const checkValues = 64 << 10

// checkSums refuses deltas that were finite and have added up to what is not. It
// looks at what has not left; rows that are Inc'd again are not sent by themselves.
func (t *Table) checkSums() error {
	for _, p := range t.parts {
		d := &p.deltas
		if !d.twice {
			continue
		}
		if at := table.FirstNonFinite(d.values); at >= 0 {
			return t.notFinite(at, d.row(p, d.gone+at/t.spec.Dim), d.values[at])
		}
	}
	return nil
}

// encodeLoans moves a part's loans into an update.
func (p *part) encodeLoans(b *partBuilder, t *Table) {
	d, dim := &p.deltas, p.deltas.dim
	for _, l := range d.loans {
		d.left = b.u
		for i := 0; i < l.n; i += runRows(dim) {
			n := min(runRows(dim), l.n-i)
			b.block(wire.Block{
				Rows:   wire.Rows{Table: t.id, First: p.first + perdure.RowID(l.at+i), Count: n},
				Values: l.values[i*dim : (i+n)*dim],
			})
		}
		t.rows.Show(p.shard, l.at, l.n, l.values)
		d.gone += l.n // entries that leave as they come
		d.n += l.n
		for j := range l.n {
			d.pos[l.at+j] = int32(d.gone)
		}
		d.spans = append(d.spans, l.span)
		b.u.rooms = append(b.u.rooms, l.of)
	}
	clear(d.loans)
	d.loans, d.from = d.loans[:0], len(d.spans)
}

// dropLoans ends the loans of an abandoned clock. The program may write to the
// memory for some time yet: nobody else gets it.
func (d *deltas) dropLoans() {
	for _, l := range d.loans {
		clear(d.pos[l.at : l.at+l.n])
	}
	clear(d.loans)
	d.loans = d.loans[:0]
}
