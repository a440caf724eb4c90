package outbox

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// Table collects the Incs to one table in the current clock.
type Table struct {
	outbox *Outbox
	id     perdure.TableID
	spec   perdure.TableSpec
	deltas []*Deltas // by shard

	weight      float64   // weight of the current clock's update; 0: not given
	freeBuffers []*Buffer // unused memory for deltas
	idle        int       // the first idle rooms have not been needed since the last trim
}

// Table adds a table to the Outbox. The view must contain its shards.
func (b *Outbox) Table(id perdure.TableID, spec perdure.TableSpec) *Table {
	for len(b.tables) <= int(id) {
		b.tables = append(b.tables, nil)
	}
	t := &Table{outbox: b, id: id, spec: spec}
	for _, s := range b.shards {
		d := &Deltas{of: t, shard: s}
		first, rows := placement.Range(&spec, len(b.shards), s.id)
		d.init(spec, first, rows, &b.spareLeft)
		t.deltas = append(t.deltas, d)
	}
	b.tables[id] = t
	b.bounds = b.bounds || spec.Consistency.Kind == perdure.VAP
	return t
}

// Weigh sets the weight of the current clock's update of the table, which must combine updates by weight.
func (t *Table) Weigh(weight float64) error {
	if err := perdure.ValidateWeight(weight); err != nil {
		return fmt.Errorf("table %s: %w", t.spec.Name, err)
	}
	if t.spec.Combine != perdure.CombineWeighted {
		return fmt.Errorf("%w: table %s uses combine %s, which does not use weights; do not call Weigh, or choose "+
			"combine weighted", perdure.ErrUsage, t.spec.Name, t.spec.Combine)
	}
	t.weight = weight
	return nil
}

// Deltas returns the deltas of the rows of one shard.
func (t *Table) Deltas(s perdure.ShardID) *Deltas { return t.deltas[s] }

// Deltas collects the Incs to one shard's rows of a table in the current clock. They are stored in the order in which
// rows were first touched, as in an update, which takes over the memory when the clock ends or earlier.
type Deltas struct {
	of    *Table
	shard *Shard
	first perdure.RowID // dense: first row of the part
	dim   int

	n       int       // entries of this clock: rows, counted again when touched after they were sent
	numSent int       // how many of the first entries have been sent
	sentIn  *Update   // the update that contains those; nil: none
	values  []float32 // of the entries gone … n-1

	// The entry of each row: 1 + its index, or 0 if it has none. Indexed by the row's number in a dense part, and by
	// its position in the index in a sparse part.
	pos   []int32
	rows  int          // dense: number of rows of the part
	index *table.Index // sparse; nil for a dense part

	runs  []run           // dense: the entries as runs of rows, in order
	from  int             // dense: the first run that has not been sent
	ids   []perdure.RowID // sparse: the rows of the entries gone … n-1
	loans []Loan          // dense: deltas that the program computes in place

	hasRepeats bool // a row was touched twice in this clock
	streams    bool // no row was touched twice in the last clock: complete parts may be sent early

	spare     []memory // memory of safe updates
	idle      int      // the first idle ones have not been used since the last trim
	spareLeft *int     // bytes that may still be kept as spare
}

// run is a run of rows of a dense part, by their numbers in it.
type run struct{ at, n int }

// memory is the memory that holds deltas.
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

// recycle reuses the memory of a safe update.
func (d *Deltas) recycle(m memory) {
	if n := m.bytes(); n <= *d.spareLeft {
		*d.spareLeft -= n
		d.spare = append(d.spare, m)
	}
}

// trim releases the spare memory that has not been used since the last call.
func (d *Deltas) trim() {
	for _, m := range d.spare[:d.idle] {
		*d.spareLeft += m.bytes()
	}
	d.spare = slices.Delete(d.spare, 0, d.idle)
	d.idle = len(d.spare)
}

// FindAll looks up rows of a sparse part. It sets at to the position of each for AddRow, or to -1 if the row has none.
// It looks up many rows at a time, so that the memory latencies of the index overlap.
func (d *Deltas) FindAll(rows []perdure.RowID, at []int) { d.index.FindAll(rows, at) }

// AddRun adds deltas to n rows of a dense part, starting at row at. It reports whether some of these rows had already
// been sent.
func (d *Deltas) AddRun(at, n int, delta []float32) (again bool) {
	if d.pos == nil {
		d.pos = make([]int32, d.rows)
	}
	for j := 0; j < n; {
		k, first := j+1, d.pos[at+j]
		if int(first) > d.numSent {
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
	d.hasRepeats = d.hasRepeats || again
	return again
}

// AddRow is AddRun for one row of a sparse part. at is the position that FindAll returned, or -1.
func (d *Deltas) AddRow(row perdure.RowID, at int, delta []float32) (again bool) {
	if at < 0 {
		k, added := d.index.Add(row)
		if at = k; added {
			d.pos = append(d.pos, 0)
		}
	}
	first := d.pos[at]
	if int(first) > d.numSent {
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
	d.hasRepeats = d.hasRepeats || again
	return again
}

// carry adds a row's deltas that have been sent to its new entry, the last one. The entry then is the sum of all Incs
// to the row in the program's order, no matter when parts were sent. For the rule set, it is the last Inc.
func (d *Deltas) carry(row perdure.RowID) {
	if d.of.spec.Rule.Kind != perdure.RuleSet {
		d.sum(d.n-1, d.sentIn.newest(d.of.id, row, d.dim))
	}
}

// sum adds deltas to those of entries, starting at entry k. For the rule set it replaces them.
func (d *Deltas) sum(k int, delta []float32) {
	d.hasRepeats = true
	to := d.values[(k-d.numSent)*d.dim:][:len(delta)]
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

// addEntries records that the newest entries belong to a run of rows.
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

// Find returns the Incs to a row that have not been sent, or nil.
func (d *Deltas) Find(row perdure.RowID) []float32 {
	k := 0
	if d.index != nil {
		if at, ok := d.index.Find(row); ok {
			k = int(d.pos[at])
		}
	} else if d.pos != nil {
		k = int(d.pos[row-d.first])
	}
	if k <= d.numSent {
		return nil
	}
	return d.values[(k-1-d.numSent)*d.dim:][:d.dim]
}

// row returns the row of entry k, which must not have been sent.
func (d *Deltas) row(k int) perdure.RowID {
	if d.index != nil {
		return d.ids[k-d.numSent]
	}
	k -= d.numSent
	for _, r := range d.runs[d.from:] {
		if k < r.n {
			return d.first + perdure.RowID(r.at+k)
		}
		k -= r.n
	}
	return d.first // not reached: every entry has a run
}

// runBytes is the minimum size of a run of rows that gets its own block.
const runBytes = 4 << 10

// encode moves the deltas that have not been sent into an update. If loans is set, it includes those that the program
// computes in place.
func (d *Deltas) encode(p *packer, loans bool) {
	d.encodeEntries(p)
	if loans {
		d.encodeLoans(p)
	}
}

func (d *Deltas) encodeEntries(p *packer) {
	if d.n == d.numSent {
		return
	}
	if d.index != nil {
		p.list(d.of, d.ids, d.values)
	} else {
		d.encodeRuns(p)
	}
	if m := (memory{d.values, d.ids}); d.rounds() {
		d.recycle(m)
	} else {
		p.u.taken = append(p.u.taken, taken{d, m})
	}
	d.values, d.ids = nil, nil
	d.numSent, d.from, d.sentIn = d.n, len(d.runs), p.u
}

// encodeRuns makes blocks of long runs, and lists of the short ones between them.
func (d *Deltas) encodeRuns(p *packer) {
	u, dim := p.u, d.dim
	runs, at := d.runs[d.from:], 0 // at: number of entries that are encoded or in ids
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
		p.run(d.of, d.first+perdure.RowID(r.at), d.values[at*dim:(at+r.n)*dim])
		at += r.n
	}
	d.encodeShort(p, ids, at)
}

// encodeShort lists the rows of short runs, whose entries end before at. It returns the memory for the next ones.
func (d *Deltas) encodeShort(p *packer, ids []perdure.RowID, at int) []perdure.RowID {
	p.list(d.of, ids, d.values[(at-len(ids))*d.dim:at*d.dim])
	p.u.ids = append(p.u.ids, ids...)
	return p.u.ids[len(p.u.ids):]
}

// reset starts a new clock.
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
	d.n, d.numSent, d.sentIn = 0, 0, nil
	d.streams, d.hasRepeats = !d.hasRepeats, false
}

// rounds reports whether deltas are rounded when they are moved into an update. This must not happen twice to a row in
// one clock, and whether it does must not depend on the network.
func (d *Deltas) rounds() bool { return d.of.spec.Encoding != perdure.EncodingFloat32 }

// RecordInc must be called after an Inc. again says that some of its rows had been sent. It reports whether enough
// deltas have accumulated for a part of an update, which is then sent while the program continues. It reports false if
// rows are likely to be Inc'd again.
func (d *Deltas) RecordInc(again bool) (enough bool) {
	if again {
		d.shard.building.repeats = true
	}
	return d.streams && !d.hasRepeats && !d.rounds() && 4*len(d.values) >= wire.PartBytes-4*d.dim-64
}

// CanFill reports whether the Incs to the part can be moved into the update before the clock ends. loans includes the
// deltas computed in place. ready means that the shard's head accepts updates.
func (d *Deltas) CanFill(loans, ready bool) bool {
	b := d.shard.outbox
	if d.n == d.numSent && (!loans || len(d.loans) == 0) || b.Phase() != Open || b.bounds {
		return false // decided at the end of the clock
	}
	if d.rounds() && d.index != nil {
		return false // a row that is Inc'd again would be rounded twice
	}
	return len(d.loans) > 0 || !d.shard.holdsBackParts(ready)
}

// Fill moves the deltas that CanFill reports into the update of the current clock. It reports whether they may be sent
// now.
func (d *Deltas) Fill(loans, ready bool) (leaves bool, err error) {
	leaves = !d.shard.holdsBackParts(ready)
	p := d.shard.begin()
	d.encode(&p, loans)
	p.flush()
	return leaves, p.check()
}
