package scar

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// batch is how many rows are looked up at once.
const batch = 128

// rows is what is known of a table's rows: of each an entry. A dense table's row has the
// entry of its position. A sparse one's has that of its id in the index, since positions
// change when rows are evicted; mostly it is the position all the same.
type rows struct {
	index  *table.Index // nil: dense
	bytes  int64        // of a row
	of     plane[place]
	saved  plane[float32] // priority: the values last saved
	counts plane[uint32]  // used: updates since
	n      int            // entries
	keeps  bool           // saved is kept
	count  bool           // counts are
}

func newRows(p *table.Part, by perdure.Selector) *rows {
	r := &rows{
		bytes: int64(p.RowBytes()), keeps: by == perdure.SelectPriority, count: by == perdure.SelectUsed,
		of: newPlane[place](1), saved: newPlane[float32](p.Spec.Dim), counts: newPlane[uint32](1),
	}
	if p.Spec.Sparse {
		r.index = table.NewIndex()
	}
	return r
}

func (r *rows) place(entry int) *place { return &r.of.rows(entry, 1)[0] }

// reserve makes entries, up to n.
func (r *rows) reserve(n int) {
	r.of.reserve(r.n, n)
	if r.keeps {
		r.saved.reserve(r.n, n)
	}
	if r.count {
		r.counts.reserve(r.n, n)
	}
	r.n = max(r.n, n)
}

// restored makes the entries of all rows of a part, which are as they are saved.
func (r *rows) restored(p *table.Part) {
	r.meet(p, true, nil)
	if !r.keeps {
		return
	}
	for at := 0; at < p.Stored(); {
		at += copy(r.saved.upTo(at, p.Stored()), p.Values(at, p.Stored()-at)) / r.saved.width
	}
}

// entries finds the entries of a sparse table's rows that lie from a position on, and
// makes those that are missing.
func (r *rows) entries(ids []perdure.RowID, from int, entry []int, made func(entry int, id perdure.RowID)) {
	if slices.Equal(r.index.IDs(from, len(ids)), ids) {
		for i := range ids {
			entry[i] = from + i
		}
		return
	}
	r.index.FindAll(ids, entry)
	for i, id := range ids {
		if entry[i] < 0 {
			at, added := r.index.Add(id)
			if entry[i] = at; added {
				r.reserve(at + 1)
				made(at, id)
			}
		}
	}
}

// at returns the entries of rows from a position on, in found, and the ids of a sparse
// table's. All rows have entries.
func (r *rows) at(p *table.Part, at int, found []int) (entry []int, ids []perdure.RowID) {
	if r.index != nil {
		ids = p.IDs(at, len(found))
		r.entries(ids, at, found, nil)
		return found[:len(ids)], ids
	}
	entry = found[:min(len(found), p.Stored()-at)]
	for i := range entry {
		entry[i] = at + i
	}
	return entry, nil
}

// meet makes the entries of rows that have none, with their initial values unless blank is
// set, and drops those of rows that are not there any more, which left is told.
func (r *rows) meet(p *table.Part, blank bool, left func(place)) {
	made := func(entry int, id perdure.RowID) {
		if r.keeps && !blank {
			p.Initial(r.saved.rows(entry, 1), id)
		}
	}
	if r.index == nil {
		was := r.n
		r.reserve(p.Stored())
		for e := was; e < r.n && p.Spec.Init.Kind != "" && p.Spec.Init.Kind != perdure.InitZeros; e++ {
			made(e, p.First+perdure.RowID(e))
		}
		return
	}
	there := make([]uint64, (r.n+p.Stored())/64+1)
	var found [batch]int
	for at := 0; at < p.Stored(); {
		ids := p.IDs(at, batch)
		r.entries(ids, at, found[:], made)
		for _, e := range found[:len(ids)] {
			there[e/64] |= 1 << (e % 64)
		}
		at += len(ids)
	}
	for e := r.n - 1; r.n > p.Stored(); e-- { // from the end: what fills a hole is known to stay
		if there[e/64]>>(e%64)&1 == 0 {
			left(*r.place(e))
			r.remove(e)
		}
	}
}

// remove drops an entry. The last one takes its place.
func (r *rows) remove(entry int) {
	r.index.Remove(r.index.ID(entry))
	r.n--
	r.of.fill(entry, r.n)
	if r.keeps {
		r.saved.fill(entry, r.n)
	}
	if r.count {
		r.counts.fill(entry, r.n)
	}
}

// used counts an update of rows.
func (r *rows) used(p *table.Part, first perdure.RowID, ids []perdure.RowID, count int) {
	if r.index == nil {
		r.reserve(p.Stored())
	}
	if ids == nil {
		for at := int(first - p.First); count > 0; {
			n := bump(r.counts.upTo(at, at+count))
			at, count = at+n, count-n
		}
		return
	}
	var entry [batch]int
	for len(ids) > 0 {
		n := min(len(ids), batch)
		if r.index != nil {
			r.entries(ids[:n], 0, entry[:], func(int, perdure.RowID) {})
		}
		for i, id := range ids[:n] {
			if r.index == nil {
				entry[i] = int(id - p.First)
			}
			bump(r.counts.rows(entry[i], 1))
		}
		ids = ids[n:]
	}
}

// bump counts one more, as far as 4 bytes go, and returns how many counts there are.
func bump(counts []uint32) int {
	for i, c := range counts {
		counts[i] = max(c+1, c)
	}
	return len(counts)
}

// keep notes rows as they are now, and returns the entries of a sparse table's.
func (r *rows) keep(p *table.Part, runs []table.Run) (entries []uint32) {
	var entry [batch]int
	for _, run := range runs {
		for at, end := run.First, run.First+run.Rows; at < end; {
			n := end - at
			if r.index != nil {
				ids := p.IDs(at, min(n, batch))
				n = len(ids)
				r.entries(ids, at, entry[:], nil)
				for i, e := range entry[:n] {
					entries = append(entries, uint32(e))
					r.keepRows(p, at+i, e, 1)
				}
			} else {
				r.keepRows(p, at, at, n)
			}
			at += n
		}
	}
	return entries
}

// keepRows notes n rows from a position on, with entries that follow each other.
func (r *rows) keepRows(p *table.Part, at, entry, n int) {
	for i := 0; r.keeps && i < n; {
		i += copy(r.saved.upTo(entry+i, entry+n), p.Values(at+i, n-i)) / r.saved.width
	}
	for i := 0; r.count && i < n; i++ {
		r.counts.rows(entry+i, 1)[0] = 0
	}
}
