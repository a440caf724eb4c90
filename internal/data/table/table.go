package table

import (
	"errors"
	"fmt"
	"math"

	"github.com/perdure/perdure"
)

// Errors that a peer's message, or a file, can cause.
var (
	ErrRow          = errors.New("table: row not on this shard")
	ErrShape        = errors.New("table: wrong number of values")
	ErrFull         = errors.New("table: too many rows on one shard")
	ErrCorruptImage = errors.New("table: corrupt image")
)

// MaxStored is the number of rows of a sparse table that one shard can hold.
const MaxStored = math.MaxInt32

// batch is how many rows' positions are looked up at once: enough to wait for
// many answers of the memory together, and few enough for the stack.
const batch = 128

// Part is one shard's part of a table.
type Part struct {
	Spec  perdure.TableSpec
	First perdure.RowID // dense: the part has the rows First … First+Rows-1
	Rows  int           // dense

	id     perdure.TableID
	seed   uint64
	update *updater
	planes []column[float32] // the values, then the state: planes as large as the values, then one value a row
	full   int               // planes of state as large as the values

	snapshots []*Snapshot // to be told what is about to change
	changes   *noted      // nil: nobody asks for them
	watchers  []Watcher

	// Of a sparse table only. The row at each position has its id in the index.
	index   *Index
	touched column[uint32] // with eviction: the highest clock of the row's updates
	swept   perdure.Clock  // rows not touched since this clock are gone
}

// New makes a part with its initial values, which depend on the job's seed, the
// table's number and the row only. A sparse table's part begins empty, and first
// and rows are ignored.
func New(spec perdure.TableSpec, id perdure.TableID, seed uint64, first perdure.RowID, rows int) *Part {
	if spec.Sparse {
		first, rows = 0, 0
	}
	p := Blank(spec, id, seed, first, rows)
	p.Begin(func(int) bool { return true })
	return p
}

// Begin gives those rows of a dense part that Blank made their initial values for which are says so.
func (p *Part) Begin(are func(at int) bool) {
	if p.Spec.Init.Kind != perdure.InitUniform && p.Spec.Init.Kind != perdure.InitNormal {
		return // zeros are there already
	}
	for at := range p.Rows {
		if are(at) {
			p.Initial(p.planes[0].rows(at, 1), p.First+perdure.RowID(at))
		}
	}
}

// Blank makes a part of a number of rows (of a sparse table: stored rows) whose
// memory is to be filled through its Image; then Restored completes it.
func Blank(spec perdure.TableSpec, id perdure.TableID, seed uint64, first perdure.RowID, rows int) *Part {
	return blank(spec, id, seed, first, rows, pieceBytes)
}

// blank is Blank with the size of the pieces in which a sparse table's rows lie.
func blank(spec perdure.TableSpec, id perdure.TableID, seed uint64, first perdure.RowID, rows, pieceBytes int) *Part {
	p := &Part{Spec: spec, First: first, Rows: rows, id: id, seed: seed, update: newUpdater(spec.Rule, spec.Dim)}
	shift := uint8(whole)
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
	p.full = full
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

// Stored returns the number of rows that the part holds in memory: of a dense
// table Rows.
func (p *Part) Stored() int {
	if p.Spec.Sparse {
		return p.index.Len()
	}
	return p.Rows
}

// IDs returns the ids of a sparse part's stored rows from a position on: at most
// n, and at least one unless there are no more. They alias the part, and are in
// the order in which the rows were stored, as far as nothing was evicted.
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
			return fmt.Errorf("%w: %d consecutive rows of table %s, which is sparse: name each row", ErrRow, n,
				p.Spec.Name)
		}
	case p.Rows == 0 && n > 0:
		return fmt.Errorf("%w: rows %d to %d of table %s; the shard holds none of it", ErrRow, first,
			first+perdure.RowID(n)-1, p.Spec.Name)
	case first < p.First || n < 0 || n > p.Rows || first-p.First > perdure.RowID(p.Rows-n):
		return fmt.Errorf("%w: rows %d to %d of table %s; the shard holds %d to %d",
			ErrRow, first, first+perdure.RowID(n)-1, p.Spec.Name, p.First, p.First+perdure.RowID(p.Rows)-1)
	}
	return nil
}

// CheckRows reports whether deltas of the given number of values could be
// applied to the rows: so that an update is refused before any part of it is.
// The rows are the count ids, or count consecutive ones from first where ids is
// nil. A sparse table has a row for every id, and no consecutive ones.
func (p *Part) CheckRows(first perdure.RowID, ids []perdure.RowID, count, values int) error {
	switch {
	case ids != nil && len(ids) != count:
		return fmt.Errorf("%w: %d rows are announced and %d named of table %s", ErrShape, count, len(ids), p.Spec.Name)
	case ids == nil:
		if err := p.checkRun(first, count); err != nil {
			return err
		}
	case p.Spec.Sparse:
		if count > MaxStored-p.index.Len() {
			return fmt.Errorf("%w: %d more of table %s, where %d of at most %d are; use more shards",
				ErrFull, count, p.Spec.Name, p.index.Len(), MaxStored)
		}
	default:
		for _, id := range ids {
			if id-p.First >= perdure.RowID(p.Rows) {
				return p.checkRun(id, 1)
			}
		}
	}
	if values != count*p.Spec.Dim {
		return fmt.Errorf("%w: %d for %d rows of table %s of %d each", ErrShape, values, count, p.Spec.Name, p.Spec.Dim)
	}
	return nil
}

// ReadRows copies rows, named as for CheckRows, into dst, in that order. A
// sparse table's row that is not stored is read as its initial values, and is
// not stored: what a part holds is a function of its updates alone.
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

// copy copies the rows at positions, or their initial values.
func (p *Part) copy(dst []float32, ids []perdure.RowID, at []int) {
	dim, ahead := p.Spec.Dim, p.ahead(1)
	p.bring(at[:min(ahead, len(at))], 1)
	for i, from := range at {
		if i%ahead == 0 {
			next := min(i+ahead, len(at))
			p.bring(at[next:min(next+ahead, len(at))], 1)
		}
		row := dst[i*dim : (i+1)*dim]
		if from < 0 {
			fillInitial(row, p.Spec.Init, p.seed, p.id, ids[i])
			continue
		}
		copy(row, p.planes[0].rows(from, 1))
	}
}

// ApplyRows applies deltas, row after row, of an update of the given clock. The
// rows are named as for CheckRows; nothing is applied if they are refused. A row
// that is named twice is changed twice, one after the other, as by two updates:
// a sender that means one change adds its deltas up. A sparse table's row that
// is not stored is, with its initial values.
func (p *Part) ApplyRows(first perdure.RowID, ids []perdure.RowID, count int, delta []float32,
	clock perdure.Clock,
) error {
	if err := p.CheckRows(first, ids, count, len(delta)); err != nil || count == 0 {
		return err
	}
	if ids == nil {
		p.update.apply(p.memory(int(first-p.First), count), delta, clock)
		return nil
	}
	var at [batch]int
	for len(ids) > 0 {
		n := min(len(ids), batch)
		p.find(ids[:n], at[:n])
		for i, id := range ids[:n] {
			if at[i] < 0 {
				at[i] = p.store(id)
			}
		}
		p.apply(at[:n], delta[:n*p.Spec.Dim], clock)
		p.touch(at[:n], clock)
		ids, delta = ids[n:], delta[n*p.Spec.Dim:]
	}
	return nil
}

// find sets at[i] to the position of ids[i], or to -1 if it is not stored.
func (p *Part) find(ids []perdure.RowID, at []int) {
	if p.Spec.Sparse {
		p.index.FindAll(ids, at)
		return
	}
	for i, id := range ids {
		at[i] = int(id - p.First)
	}
}

// apply applies deltas to the rows at positions. Neighbours are handed over
// together: with short rows, the calls would cost more than the work.
func (p *Part) apply(at []int, delta []float32, clock perdure.Clock) {
	dim, last := p.Spec.Dim, 1<<p.planes[0].shift-1 // the last of its piece
	ahead := p.ahead(len(p.planes))
	p.bring(at[:min(ahead, len(at))], len(p.planes))
	for i := 0; i < len(at); i += ahead {
		end := min(i+ahead, len(at))
		p.bring(at[end:min(end+ahead, len(at))], len(p.planes))
		for j := i; j < end; {
			n := 1
			for j+n < end && at[j+n] == at[j]+n && at[j+n]&last != 0 {
				n++
			}
			p.update.apply(p.memory(at[j], n), delta[j*dim:(j+n)*dim], clock)
			j += n
		}
	}
}

// memory returns what n rows consist of that lie in one piece, to be changed.
func (p *Part) memory(at, n int) (m planes) {
	p.putAside(at, n)
	m.values = p.planes[0].rows(at, n)
	for i := range p.full {
		m.state[i] = p.planes[1+i].rows(at, n)
	}
	if len(p.planes) > 1+p.full {
		m.row = p.planes[1+p.full].rows(at, n)
	}
	return m
}
