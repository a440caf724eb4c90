package table

import (
	"errors"
	"fmt"
	"math"

	"github.com/perdure/perdure"
)

// Errors that a peer's message or a file can cause.
var (
	ErrRow          = errors.New("table: row not on this shard")
	ErrShape        = errors.New("table: wrong number of values")
	ErrFull         = errors.New("table: too many rows on one shard")
	ErrCorruptImage = errors.New("table: corrupt image")
)

// MaxStoredRows is the max number of rows of a sparse table on one shard.
const MaxStoredRows = math.MaxInt32

// batch is the number of rows whose positions are looked up together: enough to overlap many memory accesses, and few
// enough for the stack.
const batch = 128

// Part is one shard's part of a table.
type Part struct {
	Spec  perdure.TableSpec
	First perdure.RowID // dense: the part has the rows First … First+Rows-1
	Rows  int           // dense

	id         perdure.TableID
	seed       uint64
	updater    *updater
	planes     []column[float32] // the values, then the state: planes as large as the values, then one value a row
	fullPlanes int               // planes of state as large as the values

	snapshots []*Snapshot // notified before rows change
	changed   *changeSet  // nil if changes are not recorded
	watchers  []Watcher

	// Of a sparse table only. The row at each position has its id in the index.
	index         *Index
	touched       column[uint32] // with eviction: the highest clock of the row's updates
	evictedBefore perdure.Clock  // rows not updated since this clock have been evicted
}

// New returns a part with its initial values, which depend only on the job's seed, the table's number and the row. A
// sparse table's part starts empty; first and rows are ignored.
func New(spec perdure.TableSpec, id perdure.TableID, seed uint64, first perdure.RowID, rows int) *Part {
	if spec.Sparse {
		first, rows = 0, 0
	}
	p := NewUninitialized(spec, id, seed, first, rows)
	p.SetInitial(func(int) bool { return true })
	return p
}

// SetInitial sets the rows of a dense part for which are returns true to their initial values. The part must come from
// NewUninitialized.
func (p *Part) SetInitial(are func(at int) bool) {
	if p.Spec.Init.Kind != perdure.InitUniform && p.Spec.Init.Kind != perdure.InitNormal {
		return // the rows are zero already
	}
	for at := range p.Rows {
		if are(at) {
			p.Initial(p.planes[0].rows(at, 1), p.First+perdure.RowID(at))
		}
	}
}

// NewUninitialized returns a part with the given number of rows (for a sparse table: stored rows). The caller fills its
// memory through Image; FinishRestore then completes it.
func NewUninitialized(spec perdure.TableSpec, id perdure.TableID, seed uint64, first perdure.RowID, rows int) *Part {
	return newUninitialized(spec, id, seed, first, rows, pieceBytes)
}

// newUninitialized is NewUninitialized with the given piece size for a sparse table's rows.
func newUninitialized(
	spec perdure.TableSpec,
	id perdure.TableID,
	seed uint64,
	first perdure.RowID,
	rows, pieceBytes int,
) *Part {
	p := &Part{Spec: spec, First: first, Rows: rows, id: id, seed: seed, updater: newUpdater(spec.Rule, spec.Dim)}
	shift := uint8(singlePiece)
	if spec.Sparse {
		shift = pieceShift(4*spec.Dim, pieceBytes)
		p.First, p.Rows, p.index = 0, 0, NewIndex()
		p.index.n = rows
		p.index.ids.reserve(rows)
		p.touched = column[uint32]{width: 1, shift: idShift}
		if spec.Evict > 0 {
			p.touched.reserve(rows)
		}
	}
	full, perRow := StateShape(spec.Rule)
	p.fullPlanes = full
	for range 1 + full {
		p.planes = append(p.planes, column[float32]{width: spec.Dim, shift: shift})
	}
	if perRow {
		p.planes = append(p.planes, column[float32]{width: 1, shift: shift})
	}
	for i := range p.planes {
		p.planes[i].reserve(rows)
	}
	return p
}

// Stored returns the number of rows that the part has in memory; for a dense table that is Rows.
func (p *Part) Stored() int {
	if p.Spec.Sparse {
		return p.index.Len()
	}
	return p.Rows
}

// IDs returns the ids of at most n stored rows of a sparse part from a position on, and at least one unless there are
// no more. They alias the part. Unless rows were evicted, they are in the order in which the rows were stored.
func (p *Part) IDs(from, n int) []perdure.RowID {
	if !p.Spec.Sparse {
		return nil
	}
	return p.index.IDs(from, n)
}

// Run returns the values of n consecutive rows of a dense part. They alias the
// part's memory.
func (p *Part) Run(first perdure.RowID, n int) ([]float32, error) {
	if err := p.checkRun(first, n); err != nil {
		return nil, err
	}
	if n == 0 {
		return nil, nil
	}
	return p.planes[0].rows(int(first-p.First), n), nil
}

func (p *Part) checkRun(first perdure.RowID, n int) error {
	switch {
	case p.Spec.Sparse:
		if n != 0 {
			return fmt.Errorf("%w: table %[3]s is sparse: give the ids of the %[2]d rows instead of a range", ErrRow,
				n, p.Spec.Name)
		}
	case p.Rows == 0 && n > 0:
		return fmt.Errorf("%w: got rows %d to %d of table %s, but the shard has no rows of this table", ErrRow, first,
			first+perdure.RowID(n)-1, p.Spec.Name)
	case first < p.First || n < 0 || n > p.Rows || first-p.First > perdure.RowID(p.Rows-n):
		return fmt.Errorf("%w: got rows %d to %d of table %s, but the shard has rows %d to %d",
			ErrRow, first, first+perdure.RowID(n)-1, p.Spec.Name, p.First, p.First+perdure.RowID(p.Rows)-1)
	}
	return nil
}

// CheckRows returns an error if deltas with the given number of values cannot be applied to the rows. It allows an
// update to be rejected before any part of it is applied. The rows are the count ids or, if ids is nil, count
// consecutive ones from first. A sparse table has a row for every id, and no consecutive rows.
func (p *Part) CheckRows(first perdure.RowID, ids []perdure.RowID, count, values int) error {
	switch {
	case ids != nil && len(ids) != count:
		return fmt.Errorf("%w: %d rows announced, but %d row ids given for table %s", ErrShape, count, len(ids),
			p.Spec.Name)
	case ids == nil:
		if err := p.checkRun(first, count); err != nil {
			return err
		}
	case p.Spec.Sparse:
		if count > MaxStoredRows-p.index.Len() {
			return fmt.Errorf("%w: table %[3]s has %[4]d of at most %[5]d rows, so %[2]d more do not fit; use more "+
				"shards",
				ErrFull, count, p.Spec.Name, p.index.Len(), MaxStoredRows)
		}
	default:
		for _, id := range ids {
			if id-p.First >= perdure.RowID(p.Rows) {
				return p.checkRun(id, 1)
			}
		}
	}
	if values != count*p.Spec.Dim {
		return fmt.Errorf("%w: got %d for %d rows of table %s, which have %d values each",
			ErrShape, values, count, p.Spec.Name,
			p.Spec.Dim)
	}
	return nil
}

// ReadRows copies rows, identified as in CheckRows, into dst in the given order. A row of a sparse table that is not
// stored reads as its initial values and is not stored: the content of a part depends only on its updates.
func (p *Part) ReadRows(dst []float32, first perdure.RowID, ids []perdure.RowID, count int) error {
	if err := p.CheckRows(first, ids, count, len(dst)); err != nil {
		return err
	}
	if ids == nil {
		run, _ := p.Run(first, count)
		copy(dst, run)
		return nil
	}
	var at [batch]int
	dim := p.Spec.Dim
	for len(ids) > 0 {
		n := min(len(ids), batch)
		p.find(ids[:n], at[:n])
		p.copy(dst, ids[:n], at[:n])
		ids, dst = ids[n:], dst[n*dim:]
	}
	return nil
}

// copy copies the rows at the given positions; for -1 it copies the initial values.
func (p *Part) copy(dst []float32, ids []perdure.RowID, at []int) {
	dim, ahead := p.Spec.Dim, p.prefetchRows(1)
	p.prefetchAt(at[:min(ahead, len(at))], 1)
	for i, from := range at {
		if i%ahead == 0 {
			next := min(i+ahead, len(at))
			p.prefetchAt(at[next:min(next+ahead, len(at))], 1)
		}
		row := dst[i*dim : (i+1)*dim]
		if from < 0 {
			fillInitial(row, p.Spec.Init, p.seed, p.id, ids[i])
			continue
		}
		copy(row, p.planes[0].rows(from, 1))
	}
}

// ApplyRows applies the deltas of an update of the given clock, row by row. The rows are identified as in CheckRows; if
// they are rejected, nothing is applied. A row that occurs twice is changed twice, as by two updates; a sender that
// means one change must add up its deltas. A row of a sparse table that is not stored yet is stored first, with its
// initial values.
func (p *Part) ApplyRows(first perdure.RowID, ids []perdure.RowID, count int, delta []float32,
	clock perdure.Clock,
) error {
	if err := p.CheckRows(first, ids, count, len(delta)); err != nil || count == 0 {
		return err
	}
	if ids == nil {
		p.updater.apply(p.memoryOf(int(first-p.First), count), delta, clock)
		return nil
	}
	var at [batch]int
	for len(ids) > 0 {
		n := min(len(ids), batch)
		p.find(ids[:n], at[:n])
		for i, id := range ids[:n] {
			if at[i] < 0 {
				at[i] = p.insertInitial(id)
			}
		}
		p.apply(at[:n], delta[:n*p.Spec.Dim], clock)
		p.touch(at[:n], clock)
		ids, delta = ids[n:], delta[n*p.Spec.Dim:]
	}
	return nil
}

// find sets at[i] to the position of ids[i], or to -1 if the row is not stored.
func (p *Part) find(ids []perdure.RowID, at []int) {
	if p.Spec.Sparse {
		p.index.FindAll(ids, at)
		return
	}
	for i, id := range ids {
		at[i] = int(id - p.First)
	}
}

// apply applies deltas to the rows at the given positions. Adjacent rows are processed together: with short rows, the
// calls would cost more than the work.
func (p *Part) apply(at []int, delta []float32, clock perdure.Clock) {
	dim, last := p.Spec.Dim, 1<<p.planes[0].shift-1 // last row of a piece
	ahead := p.prefetchRows(len(p.planes))
	p.prefetchAt(at[:min(ahead, len(at))], len(p.planes))
	for i := 0; i < len(at); i += ahead {
		end := min(i+ahead, len(at))
		p.prefetchAt(at[end:min(end+ahead, len(at))], len(p.planes))
		for j := i; j < end; {
			n := 1
			for j+n < end && at[j+n] == at[j]+n && at[j+n]&last != 0 {
				n++
			}
			p.updater.apply(p.memoryOf(at[j], n), delta[j*dim:(j+n)*dim], clock)
			j += n
		}
	}
}

// memoryOf returns the memory of n rows in one piece, for modification.
func (p *Part) memoryOf(at, n int) (m planes) {
	p.beforeChange(at, n)
	m.values = p.planes[0].rows(at, n)
	for i := range p.fullPlanes {
		m.state[i] = p.planes[1+i].rows(at, n)
	}
	if len(p.planes) > 1+p.fullPlanes {
		m.row = p.planes[1+p.fullPlanes].rows(at, n)
	}
	return m
}
