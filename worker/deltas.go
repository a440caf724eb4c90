package worker

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/table"
	"github.com/perdure/perdure/wire"
)

// deltas are what was Inc'd to a part's rows in the present clock. They lie in
// the order in which the rows were first touched, which is how an update has
// them: it takes the memory over as it is.
type deltas struct {
	dim    int
	n      int       // rows touched in this clock
	gone   int       // so many of them, the first, have left already: Flush
	values []float32 // of the rows gone … n-1

	rows  int     // dense: of the part
	pos   []int32 // dense: 1 + a row's place among the n; 0: not touched
	spans []span  // dense: all n rows as runs, in order
	from  int     // dense: the first span that has not left

	index *table.Index    // sparse: a row's place among the n
	ids   []perdure.RowID // sparse: the rows gone … n-1

	spare []memory // of updates that are safe
}

// memory is what deltas lie in.
type memory struct {
	values []float32
	ids    []perdure.RowID
}

// mostSpare is how many updates' memory a part keeps to be used again.
const mostSpare = 3

func (d *deltas) init(spec perdure.TableSpec, rows int) {
	d.dim, d.rows = spec.Dim, rows
	if spec.Sparse {
		d.index = table.NewIndex()
	}
}

var errFlushed = fmt.Errorf("%w: rows that were flushed in this clock cannot be Inc'd again before the next", perdure.ErrUsage)

// mayAdd refuses a run of rows some of which have left already.
func (d *deltas) mayAdd(at, n int) error {
	if d.gone == 0 {
		return nil
	}
	for _, k := range d.pos[at : at+n] {
		if k > 0 && int(k) <= d.gone {
			return errFlushed
		}
	}
	return nil
}

// mayAdd is deltas.mayAdd for one row.
func (p *part) mayAdd(row perdure.RowID) error {
	d := &p.deltas
	if d.index == nil {
		return d.mayAdd(int(row-p.first), 1)
	}
	if d.gone > 0 {
		if k, ok := d.index.Find(row); ok && k < d.gone {
			return errFlushed
		}
	}
	return nil
}

// addRun adds deltas to a run of a dense part's rows.
func (d *deltas) addRun(at, n int, delta []float32) {
	if d.pos == nil {
		d.pos = make([]int32, d.rows)
	}
	for j := 0; j < n; {
		k, first := j+1, d.pos[at+j]
		if first > 0 {
			for k < n && d.pos[at+k] == first+int32(k-j) {
				k++
			}
			d.sum(int(first)-1, delta[j*d.dim:k*d.dim])
		} else {
			for k < n && d.pos[at+k] == 0 {
				k++
			}
			d.push(delta[j*d.dim : k*d.dim])
			d.span(at+j, k-j)
		}
		j = k
	}
}

// addRow adds a delta to a row of a sparse part.
func (d *deltas) addRow(row perdure.RowID, delta []float32) {
	k, added := d.index.Add(row)
	if !added {
		d.sum(k, delta)
		return
	}
	d.push(delta)
	d.ids = append(d.ids, row)
	d.n++
}

// sum adds deltas to those of rows that were touched before, from the k-th on.
func (d *deltas) sum(k int, delta []float32) {
	to := d.values[(k-d.gone)*d.dim:][:len(delta)]
	table.Apply(perdure.Rule{Kind: perdure.RuleAdd}, d.dim, to, delta, 0)
}

// push appends the deltas of rows that are touched for the first time.
func (d *deltas) push(delta []float32) {
	if n := len(d.spare); d.values == nil && n > 0 {
		d.values, d.ids = d.spare[n-1].values[:0], d.spare[n-1].ids[:0]
		d.spare = d.spare[:n-1]
	}
	d.values = append(d.values, delta...)
}

// span notes rows of a dense part as touched.
func (d *deltas) span(at, n int) {
	for i := at; i < at+n; i++ {
		d.n++
		d.pos[i] = int32(d.n)
	}
	if last := len(d.spans) - 1; last >= d.from && d.spans[last].at+d.spans[last].n == at {
		d.spans[last].n += n
		return
	}
	d.spans = append(d.spans, span{at: at, n: n})
}

// find returns what was Inc'd to a row and has not left yet; nil: nothing.
func (d *deltas) find(p *part, row perdure.RowID) []float32 {
	k := -1
	if d.index != nil {
		if at, ok := d.index.Find(row); ok {
			k = at
		}
	} else if d.pos != nil {
		k = int(d.pos[row-p.first]) - 1
	}
	if k < d.gone {
		return nil
	}
	return d.values[(k-d.gone)*d.dim:][:d.dim]
}

// runBytes is the least size of a run of rows that gets a block of its own.
const runBytes = 4 << 10

// encode moves the deltas that have not left into an update.
func (p *part) encode(b *partBuilder, t *Table) {
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
	d.gone, d.from = d.n, len(d.spans)
}

// encodeSpans makes a block of each long run, and lists of the short ones between.
func (p *part) encodeSpans(b *partBuilder, t *Table) {
	d, dim := &p.deltas, p.deltas.dim
	spans, at := d.spans[d.from:], 0 // at: rows of values that are encoded or in ids
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
		for i := 0; i < s.n; i += b.runRows(dim) {
			n := min(b.runRows(dim), s.n-i)
			b.block(wire.Block{
				Rows:   wire.Rows{Table: t.id, First: p.first + perdure.RowID(s.at+i), Count: n},
				Values: d.values[(at+i)*dim : (at+i+n)*dim],
			})
		}
		at += s.n
	}
	list()
}

// encodeList makes blocks of rows that are named one by one.
func (p *part) encodeList(b *partBuilder, t *Table, ids []perdure.RowID, values []float32) {
	dim := p.deltas.dim
	most := max(1, (wire.PartBytes-64)/(4*dim+8))
	for len(ids) > 0 {
		n := min(most, len(ids))
		b.block(wire.Block{Rows: wire.Rows{Table: t.id, Count: n, IDs: ids[:n:n]}, Values: values[:n*dim]})
		ids, values = ids[n:], values[n*dim:]
	}
}

// reset begins a new clock.
func (d *deltas) reset() {
	for _, s := range d.spans {
		clear(d.pos[s.at : s.at+s.n])
	}
	d.spans, d.from = d.spans[:0], 0
	if d.index != nil && d.n > 0 {
		d.index.Reset()
	}
	d.values, d.ids = d.values[:0], d.ids[:0]
	d.n, d.gone = 0, 0
}
