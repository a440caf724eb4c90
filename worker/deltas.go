package worker

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// deltas are what was Inc'd to a part's rows in the present clock. They lie in
// the order in which the rows were first touched, which is how an update has
// them: it takes the memory over as it is, at Clock or before.
type deltas struct {
	table  perdure.TableID
	first  perdure.RowID // dense: the part's
	dim    int
	n      int       // entries of this clock: rows, and again each that was touched after it had left
	gone   int       // so many of them, the first, have left
	left   *update   // where those are; nil: none has left
	values []float32 // of the entries gone … n-1

	// Where a row's entry is: 1 + its number, 0 if it has none. By the row's number
	// in a dense part, by its position in the index in a sparse one.
	pos   []int32
	rows  int          // dense: of the part
	index *table.Index // sparse; nil for a dense part

	spans []span          // dense: the entries as runs of rows, in order
	from  int             // dense: the first span that has not left
	ids   []perdure.RowID // sparse: the rows of the entries gone … n-1
	loans []loan          // dense: deltas that the program computes in place

	twice   bool // a row was touched twice in this clock
	streams bool // no row was touched twice in the last one: what is complete may leave early

	spare     []memory // of updates that are safe
	idle      int      // the first so many of them have not been used since trim
	spareLeft *int     // bytes that the client may still keep so
}

// memory is what deltas lie in.
type memory struct {
	values []float32
	ids    []perdure.RowID
}

func (m memory) bytes() int { return 4*cap(m.values) + 8*cap(m.ids) }

// recycle takes back the memory of an update that is safe.
func (d *deltas) recycle(m memory) {
	if n := m.bytes(); n <= *d.spareLeft {
		*d.spareLeft -= n
		d.spare = append(d.spare, m)
	}
}

// trim lets go of the spare memory that was not used since it was last called.
func (d *deltas) trim() {
	for _, m := range d.spare[:d.idle] {
		*d.spareLeft += m.bytes()
	}
	d.spare = slices.Delete(d.spare, 0, d.idle)
	d.idle = len(d.spare)
}

func (d *deltas) init(t perdure.TableID, spec perdure.TableSpec, first perdure.RowID, rows int, spareLeft *int) {
	d.table, d.dim, d.first, d.rows, d.streams, d.spareLeft = t, spec.Dim, first, rows, true, spareLeft
	if spec.Sparse {
		d.index = table.NewIndex()
	}
}

// addRun adds deltas to a run of a dense part's rows. It reports whether rows
// were among them that have left already.
func (d *deltas) addRun(at, n int, delta []float32) (again bool) {
	if d.pos == nil {
		d.pos = make([]int32, d.rows)
	}
	for j := 0; j < n; {
		k, first := j+1, d.pos[at+j]
		if int(first) > d.gone {
			for k < n && d.pos[at+k] == first+int32(k-j) {
				k++
			}
			d.sum(int(first)-1, delta[j*d.dim:k*d.dim])
			j = k
			continue
		}
		for k < n && d.pos[at+k] == 0 && first == 0 {
			k++
		}
		again = again || first > 0
		d.push(delta[j*d.dim : k*d.dim])
		d.span(at+j, k-j)
		if first > 0 {
			d.carry(d.first + perdure.RowID(at+j))
		}
		j = k
	}
	d.twice = d.twice || again
	return again
}

// addRow is addRun for a row of a sparse part. at is its position in the index, -1
// if it was not there when somebody looked.
func (d *deltas) addRow(row perdure.RowID, at int, delta []float32) (again bool) {
	if at < 0 {
		k, added := d.index.Add(row)
		if at = k; added {
			d.pos = append(d.pos, 0)
		}
	}
	first := d.pos[at]
	if int(first) > d.gone {
		d.sum(int(first)-1, delta)
		return false
	}
	d.push(delta)
	d.ids = append(d.ids, row)
	d.n++
	d.pos[at] = int32(d.n)
	if again = first > 0; again {
		d.carry(row)
	}
	d.twice = d.twice || again
	return again
}

// carry adds what has left of a row to its new entry, the last one: it is the sum
// of all that was Inc'd to the row, in the program's order, whenever parts left.
func (d *deltas) carry(row perdure.RowID) {
	d.sum(d.n-1, d.left.newest(d.table, row, d.dim))
}

// sum adds deltas to those of entries, from the k-th on.
func (d *deltas) sum(k int, delta []float32) {
	d.twice = true
	to := d.values[(k-d.gone)*d.dim:][:len(delta)]
	table.Apply(perdure.Rule{Kind: perdure.RuleAdd}, d.dim, to, delta, 0)
}

// push appends the deltas of new entries.
func (d *deltas) push(delta []float32) {
	if n := len(d.spare); d.values == nil && n > 0 {
		m := d.spare[n-1]
		d.spare = slices.Delete(d.spare, n-1, n)
		d.idle = min(d.idle, n-1)
		*d.spareLeft += m.bytes()
		d.values, d.ids = m.values[:0], m.ids[:0]
	}
	d.values = append(d.values, delta...)
}

// span notes new entries of a run of rows.
func (d *deltas) span(at, n int) {
	for i := range d.pos[at : at+n] {
		d.pos[at+i] = int32(d.n + 1 + i)
	}
	d.n += n
	if last := len(d.spans) - 1; last >= d.from && d.spans[last].at+d.spans[last].n == at {
		d.spans[last].n += n
		return
	}
	d.spans = append(d.spans, span{at: at, n: n})
}

// find returns what was Inc'd to a row and has not left yet; nil: nothing.
func (d *deltas) find(p *part, row perdure.RowID) []float32 {
	k := 0
	if d.index != nil {
		if at, ok := d.index.Find(row); ok {
			k = int(d.pos[at])
		}
	} else if d.pos != nil {
		k = int(d.pos[row-p.first])
	}
	if k <= d.gone {
		return nil
	}
	return d.values[(k-1-d.gone)*d.dim:][:d.dim]
}

// row returns which row the k-th entry is of, one that has not left.
func (d *deltas) row(p *part, k int) perdure.RowID {
	if d.index != nil {
		return d.ids[k-d.gone]
	}
	k -= d.gone
	for _, s := range d.spans[d.from:] {
		if k < s.n {
			return p.first + perdure.RowID(s.at+k)
		}
		k -= s.n
	}
	return p.first // every entry has a span
}

// bytes returns the size of what has not left.
func (d *deltas) bytes() int { return 4 * len(d.values) }

// runBytes is the least size of a run of rows that gets a block of its own.
const runBytes = 4 << 10

// encode moves the deltas that have not left into an update, with those that the
// program computes in place if it has done so.
func (p *part) encode(b *partBuilder, t *Table, loans bool) {
	p.encodeEntries(b, t)
	if loans {
		p.encodeLoans(b, t)
	}
}

func (p *part) encodeEntries(b *partBuilder, t *Table) {
	d := &p.deltas
	if d.n == d.gone {
		return
	}
	if d.index != nil {
		p.encodeList(b, t, d.ids, d.values)
	} else {
		p.encodeSpans(b, t)
	}
	b.u.taken = append(b.u.taken, taken{d, memory{d.values, d.ids}})
	d.values, d.ids = nil, nil
	d.gone, d.from, d.left = d.n, len(d.spans), b.u
}

// encodeSpans makes a block of each long run, and lists of the short ones between.
func (p *part) encodeSpans(b *partBuilder, t *Table) {
	d, dim := &p.deltas, p.deltas.dim
	spans, at := d.spans[d.from:], 0 // at: entries that are encoded or in ids
	ids := b.u.ids[len(b.u.ids):]
	list := func() {
		p.encodeList(b, t, ids, d.values[(at-len(ids))*dim:at*dim])
		b.u.ids = append(b.u.ids, ids...)
		ids = b.u.ids[len(b.u.ids):]
	}
	for _, s := range spans {
		if 4*dim*s.n < runBytes && len(spans) > 1 {
			for i := range s.n {
				ids = append(ids, p.first+perdure.RowID(s.at+i))
			}
			at += s.n
			continue
		}
		list()
		for i := 0; i < s.n; i += runRows(dim) {
			n := min(runRows(dim), s.n-i)
			b.block(wire.Block{
				Rows:   wire.Rows{Table: t.id, First: p.first + perdure.RowID(s.at+i), Count: n},
				Values: d.values[(at+i)*dim : (at+i+n)*dim],
			})
		}
		at += s.n
	}
	list()
}

// listRows is how many rows that are named one by one go into one block.
func listRows(dim int) int { return max(1, (wire.PartBytes-64)/(4*dim+8)) }

// encodeList makes blocks of rows that are named one by one.
func (p *part) encodeList(b *partBuilder, t *Table, ids []perdure.RowID, values []float32) {
	dim := p.deltas.dim
	most := listRows(dim)
	for len(ids) > 0 {
		n := min(most, len(ids))
		b.block(wire.Block{Rows: wire.Rows{Table: t.id, Count: n, IDs: ids[:n:n]}, Values: values[:n*dim]})
		ids, values = ids[n:], values[n*dim:]
	}
}

// reset begins a new clock.
func (d *deltas) reset() {
	d.dropLoans()
	for _, s := range d.spans {
		clear(d.pos[s.at : s.at+s.n])
	}
	d.spans, d.from = d.spans[:0], 0
	if d.index != nil && d.n > 0 {
		d.index.Reset()
		d.pos = d.pos[:0]
	}
	d.values, d.ids = d.values[:0], d.ids[:0]
	d.n, d.gone, d.left = 0, 0, nil
	d.streams, d.twice = !d.twice, false
}
