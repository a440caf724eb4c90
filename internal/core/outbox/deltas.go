package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Table is what was Inc'd to one table in the present clock.
type Table struct {
	box   *Box
	id    perdure.TableID
	spec  perdure.TableSpec
	parts []*Deltas // by shard

	weight float64 // of the present clock's update of it; 0: none was given
	rooms  []*Room // memory for deltas that nobody uses
	idle   int     // the first of them that were not wanted since the last trim
}

// Table returns the side of a table that things are Inc'd to. The view must have its shards.
func (b *Box) Table(id perdure.TableID, spec perdure.TableSpec) *Table {
	for len(b.tables) <= int(id) {
		b.tables = append(b.tables, nil)
	}
	t := &Table{box: b, id: id, spec: spec}
	for _, s := range b.shards {
		d := &Deltas{of: t, shard: s}
		first, rows := placement.Range(&spec, len(b.shards), s.id)
		d.init(spec, first, rows, &b.spareLeft)
		t.parts = append(t.parts, d)
	}
	b.tables[id] = t
	b.bounds = b.bounds || spec.Consistency.Kind == perdure.VAP
	return t
}

// Weigh says how much the present clock's update of the table counts, which combines updates by their weights.
func (t *Table) Weigh(weight float64) error {
	if err := perdure.ValidateWeight(weight); err != nil {
		return fmt.Errorf("table %s: %w", t.spec.Name, err)
	}
	if t.spec.Combine != perdure.CombineWeighted {
		return fmt.Errorf("%w: table %s has updates without weights, since it combines %s; leave Weigh out, or "+
			"choose combine weighted", perdure.ErrUsage, t.spec.Name, t.spec.Combine)
	}
	t.weight = weight
	return nil
}

// Part returns the deltas of the rows that one shard has.
func (t *Table) Part(s perdure.ShardID) *Deltas { return t.parts[s] }

// Deltas are what was Inc'd to a part's rows in the present clock. They lie in the order in
// which the rows were first touched, which is how an update has them: it takes the memory
// over as it is, when the clock ends or before.
type Deltas struct {
	of    *Table
	shard *Shard
	first perdure.RowID // dense: the part's
	dim   int

	n      int       // entries of this clock: rows, and again each that was touched after it had left
	gone   int       // the first of them that have left
	left   *Update   // that those are in; nil: none has left
	values []float32 // of the entries gone … n-1

	// Where a row's entry is: 1 + its number, 0 if it has none. By the row's number in a
	// dense part, by its position in the index in a sparse one.
	pos   []int32
	rows  int          // dense: of the part
	index *table.Index // sparse; nil for a dense part

	runs  []run           // dense: the entries as runs of rows, in order
	from  int             // dense: the first run that has not left
	ids   []perdure.RowID // sparse: the rows of the entries gone … n-1
	loans []Loan          // dense: deltas that the program computes in place

	twice   bool // a row was touched twice in this clock
	streams bool // no row was touched twice in the last one: what is complete may leave early

	spare     []memory // of updates that are safe
	idle      int      // the first of them that have not been used since trim
	spareLeft *int     // bytes that may still be kept so
}

// run is a run of rows of a dense part, by their numbers in it.
type run struct{ at, n int }

// memory is what deltas lie in.
type memory struct {
	values []float32
	ids    []perdure.RowID
}

func (m memory) bytes() int { return 4*cap(m.values) + 8*cap(m.ids) }

func (d *Deltas) init(spec perdure.TableSpec, first perdure.RowID, rows int, spareLeft *int) {
	d.dim, d.first, d.rows, d.streams, d.spareLeft = spec.Dim, first, rows, true, spareLeft
	if spec.Sparse {
		d.index = table.NewIndex()
	}
}

// recycle takes back the memory of an update that is safe.
func (d *Deltas) recycle(m memory) {
	if n := m.bytes(); n <= *d.spareLeft {
		*d.spareLeft -= n
		d.spare = append(d.spare, m)
	}
}

// trim lets go of the spare memory that was not used since it was last called.
func (d *Deltas) trim() {
	for _, m := range d.spare[:d.idle] {
		*d.spareLeft += m.bytes()
	}
	d.spare = slices.Delete(d.spare, 0, d.idle)
	d.idle = len(d.spare)
}

// FindAll looks up rows of a sparse part: at gets where each is, for AddRow; -1: nowhere yet.
// It looks many up at a time, so that the waits for the index's memory overlap.
func (d *Deltas) FindAll(rows []perdure.RowID, at []int) { d.index.FindAll(rows, at) }

// AddRun adds deltas to n rows of a dense part, from the at-th on. It reports whether rows
// were among them that have left already.
func (d *Deltas) AddRun(at, n int, delta []float32) (again bool) {
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
		d.addEntries(at+j, k-j)
		if first > 0 {
			d.carry(d.first + perdure.RowID(at+j))
		}
		j = k
	}
	d.twice = d.twice || again
	return again
}

// AddRow is AddRun for a row of a sparse part. at is where FindAll has found it, -1 if it had
// not.
func (d *Deltas) AddRow(row perdure.RowID, at int, delta []float32) (again bool) {
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

// carry adds what has left of a row to its new entry, the last one: it is the sum of all that
// was Inc'd to the row, in the program's order, whenever parts left. Of a table of the rule set
// it is what was Inc'd last.
func (d *Deltas) carry(row perdure.RowID) {
	if d.of.spec.Rule.Kind != perdure.RuleSet {
		d.sum(d.n-1, d.left.newest(d.of.id, row, d.dim))
	}
}

// sum adds deltas to those of entries, from the k-th on; under the rule set it puts them there.
func (d *Deltas) sum(k int, delta []float32) {
	d.twice = true
	to := d.values[(k-d.gone)*d.dim:][:len(delta)]
	if d.of.spec.Rule.Kind == perdure.RuleSet {
		copy(to, delta)
		return
	}
	table.Apply(perdure.Rule{Kind: perdure.RuleAdd}, d.dim, to, delta, 0)
}

// push appends the deltas of new entries.
func (d *Deltas) push(delta []float32) {
	if n := len(d.spare); d.values == nil && n > 0 {
		m := d.spare[n-1]
		d.spare = slices.Delete(d.spare, n-1, n)
		d.idle = min(d.idle, n-1)
		*d.spareLeft += m.bytes()
		d.values, d.ids = m.values[:0], m.ids[:0]
	}
	d.values = append(d.values, delta...)
}

// addEntries notes that the newest entries are of a run of rows.
func (d *Deltas) addEntries(at, n int) {
	for i := range d.pos[at : at+n] {
		d.pos[at+i] = int32(d.n + 1 + i)
	}
	d.n += n
	if last := len(d.runs) - 1; last >= d.from && d.runs[last].at+d.runs[last].n == at {
		d.runs[last].n += n
		return
	}
	d.runs = append(d.runs, run{at: at, n: n})
}

// Find returns what was Inc'd to a row and has not left yet; nil: nothing.
func (d *Deltas) Find(row perdure.RowID) []float32 {
	k := 0
	if d.index != nil {
		if at, ok := d.index.Find(row); ok {
			k = int(d.pos[at])
		}
	} else if d.pos != nil {
		k = int(d.pos[row-d.first])
	}
	if k <= d.gone {
		return nil
	}
	return d.values[(k-1-d.gone)*d.dim:][:d.dim]
}

// row returns which row the k-th entry is of, one that has not left.
func (d *Deltas) row(k int) perdure.RowID {
	if d.index != nil {
		return d.ids[k-d.gone]
	}
	k -= d.gone
	for _, r := range d.runs[d.from:] {
		if k < r.n {
			return d.first + perdure.RowID(r.at+k)
		}
		k -= r.n
	}
	return d.first // every entry has a run
}

// runBytes is the least size of a run of rows that gets a block of its own.
const runBytes = 4 << 10

// encode moves the deltas that have not left into an update, with those that the program
// computes in place if it has done so.
func (d *Deltas) encode(p *packer, loans bool) {
	d.encodeEntries(p)
	if loans {
		d.encodeLoans(p)
	}
}

func (d *Deltas) encodeEntries(p *packer) {
	if d.n == d.gone {
		return
	}
	if d.index != nil {
		p.list(d.of.id, d.dim, d.ids, d.values)
	} else {
		d.encodeRuns(p)
	}
	p.u.taken = append(p.u.taken, taken{d, memory{d.values, d.ids}})
	d.values, d.ids = nil, nil
	d.gone, d.from, d.left = d.n, len(d.runs), p.u
}

// encodeRuns makes blocks of each long run, and lists of the short ones between.
func (d *Deltas) encodeRuns(p *packer) {
	u, dim := p.u, d.dim
	runs, at := d.runs[d.from:], 0 // at: entries that are encoded or in ids
	ids := u.ids[len(u.ids):]
	for _, r := range runs {
		if 4*dim*r.n < runBytes && len(runs) > 1 {
			for i := range r.n {
				ids = append(ids, d.first+perdure.RowID(r.at+i))
			}
			at += r.n
			continue
		}
		ids = d.encodeShort(p, ids, at)
		p.run(d.of.id, dim, d.first+perdure.RowID(r.at), d.values[at*dim:(at+r.n)*dim])
		at += r.n
	}
	d.encodeShort(p, ids, at)
}

// encodeShort makes a list of the rows of short runs, whose entries end before at. It returns
// the memory for the next ones.
func (d *Deltas) encodeShort(p *packer, ids []perdure.RowID, at int) []perdure.RowID {
	p.list(d.of.id, d.dim, ids, d.values[(at-len(ids))*d.dim:at*d.dim])
	p.u.ids = append(p.u.ids, ids...)
	return p.u.ids[len(p.u.ids):]
}

// reset begins a new clock.
func (d *Deltas) reset() {
	d.dropLoans()
	for _, r := range d.runs {
		clear(d.pos[r.at : r.at+r.n])
	}
	d.runs, d.from = d.runs[:0], 0
	if d.index != nil && d.n > 0 {
		d.index.Reset()
		d.pos = d.pos[:0]
	}
	d.values, d.ids = d.values[:0], d.ids[:0]
	d.n, d.gone, d.left = 0, 0, nil
	d.streams, d.twice = !d.twice, false
}

// Added follows up on an Inc. again says that rows were among it that had left. It reports
// whether what has come together is enough for a part of an update, so that it leaves now
// while the program goes on; it is not, where rows are likely to be Inc'd again.
func (d *Deltas) Added(again bool) (enough bool) {
	if again {
		d.shard.building.repeats = true
	}
	return d.streams && !d.twice && 4*len(d.values) >= wire.PartBytes-4*d.dim-64
}

// Due reports whether what was Inc'd to the part, or is computed in place where loans are to
// leave, can go into the update before the clock ends. ready says that the shard's head takes
// updates.
func (d *Deltas) Due(loans, ready bool) bool {
	b := d.shard.box
	if d.n == d.gone && (!loans || len(d.loans) == 0) || b.Phase() != Open || b.bounds {
		return false // the end of the clock will say what becomes of it
	}
	return len(d.loans) > 0 || !d.shard.holdsParts(ready)
}

// Fill moves what is Due into the update of the present clock. It reports whether that may
// leave now.
func (d *Deltas) Fill(loans, ready bool) (leaves bool, err error) {
	leaves = !d.shard.holdsParts(ready)
	p := d.shard.begin()
	d.encode(&p, loans)
	p.flush()
	return leaves, p.check()
}
