package scar

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// batch is how many rows are looked at together.
const batch = 128

// rows is what is known of a table's rows, by position. Those of a sparse table move when others
// are evicted: Evicting has to be told.
type rows struct {
	bytes  int64 // of a row
	of     plane[place]
	past   past          // priority: the values last saved
	counts plane[uint32] // used: updates since
	n      int           // rows that are known
	keeps  bool          // past is kept
	count  bool          // counts are
	moves  bool          // rows go, and others take their places
	sparse bool
	owes   bool // some of them may be owed
}

func newRows(p *table.Part, by perdure.Selector) *rows {
	r := &rows{
		bytes: int64(p.RowBytes()), keeps: by == perdure.SelectPriority, count: by == perdure.SelectUsed,
		moves: p.Spec.Evict > 0, sparse: p.Spec.Sparse,
		of: newPlane[place](1), counts: newPlane[uint32](1),
	}
	if r.keeps {
		r.past = newPast(p)
		p.Watch(&r.past)
	}
	return r
}

func (r *rows) place(at int) *place { return &r.of.rows(at, 1)[0] }

// reserve makes rows of which nothing is known, up to n.
func (r *rows) reserve(n int) {
	r.of.reserve(r.n, n)
	r.past.n = max(r.n, n)
	if r.count {
		r.counts.reserve(r.n, n)
	}
	r.n = max(r.n, n)
}

// restored knows all rows of a part, which are as they are saved.
func (r *rows) restored(p *table.Part) {
	r.reserve(p.Stored())
}

// meet knows the rows that are new, as saved with their initial values unless blank is set.
func (r *rows) meet(p *table.Part, blank bool) {
	was := r.n
	if r.keeps && !blank {
		r.past.begin(was, p.Stored())
	}
	r.reserve(p.Stored())
}

// remove forgets a row. The last one takes its place.
func (r *rows) remove(at int) {
	r.n--
	r.of.fill(at, r.n)
	if r.keeps {
		r.past.remove(at)
	}
	if r.count {
		r.counts.fill(at, r.n)
	}
}

// used counts an update of rows, all of which are known.
func (r *rows) used(p *table.Part, first perdure.RowID, ids []perdure.RowID, count int) {
	if ids == nil {
		for at := int(first - p.First); count > 0; {
			n := bump(r.counts.upTo(at, at+count))
			at, count = at+n, count-n
		}
		return
	}
	var found [batch]int
	for len(ids) > 0 {
		n := min(len(ids), batch)
		p.Positions(ids[:n], found[:n])
		for _, at := range found[:n] {
			bump(r.counts.rows(at, 1))
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

// keep notes rows as they are now.
func (r *rows) keep(p *table.Part, runs []table.Run) {
	if !r.keeps && !r.count && !r.moves {
		return
	}
	for _, run := range runs {
		if r.keeps {
			r.past.keep(run)
		}
		if r.count {
			r.counts.each(run, func(counts []uint32) { clear(counts) })
		}
		if r.moves {
			r.of.each(run, func(of []place) {
				for i := range of {
					of[i] |= chosen
				}
			})
		}
	}
}

// chosen calls f for where the newest save is of each row that a choice has.
func (r *rows) chosen(runs []table.Run, f func(of *place)) {
	if !r.moves {
		for _, run := range runs {
			r.of.each(run, func(of []place) {
				for i := range of {
					f(&of[i])
				}
			})
		}
		return
	}
	r.of.each(table.Run{Rows: r.n}, func(of []place) {
		for i := range of {
			if of[i]&chosen != 0 {
				of[i] &^= chosen
				f(&of[i])
			}
		}
	})
}
