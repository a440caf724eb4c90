package scar

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/table"
)

// batch is how many rows are looked up together.
const batch = 128

// rows is what the ledger knows about a table's units, by position. A unit is a row, or all rows of a whole table. In a
// sparse table, evicting rows moves others, which must be reported with EvictionHook.
type rows struct {
	whole        bool  // all rows are one unit
	bytes        int64 // size of a unit
	of           chunkedArray[location]
	saved        savedValues          // priority: the values last saved, by row
	counts       chunkedArray[uint32] // used: updates of each row since its last save; for a whole table, their sum
	n            int                  // number of known units
	tracksValues bool                 // past is in use
	count        bool                 // counts is in use
	moves        bool                 // rows are evicted, and others take their places
	sparse       bool
	hasFailed    bool // some of the units may have the owed flag
}

func newRows(p *table.Part, set *Settings) *rows {
	r := &rows{
		whole: p.Spec.Whole && !set.Torn, bytes: int64(p.RowBytes()),
		tracksValues: set.Selector == perdure.SelectPriority, count: set.Selector == perdure.SelectUsed,
		moves: p.Spec.Evict > 0, sparse: p.Spec.Sparse,
		of: newChunkedArray[location](1), counts: newChunkedArray[uint32](1),
	}
	if r.whole {
		r.bytes *= int64(p.Rows)
	}
	if r.tracksValues {
		r.saved = newSavedValues(p)
		p.Watch(&r.saved)
	}
	return r
}

func (r *rows) location(at int) *location { return &r.of.rows(at, 1)[0] }

// units returns the number of units in a part.
func (r *rows) units(p *table.Part) int {
	if r.whole {
		return min(1, p.Rows)
	}
	return p.Stored()
}

// rowsOf converts runs of units to runs of rows.
func (r *rows) rowsOf(p *table.Part, units []table.Run) []table.Run {
	if r.whole && len(units) > 0 {
		return []table.Run{{Rows: p.Rows}}
	}
	return units
}

// reserve adds unsaved units for all rows of a part.
func (r *rows) reserve(p *table.Part) {
	n := r.units(p)
	r.of.reserve(r.n, n)
	r.saved.n = max(r.saved.n, p.Stored())
	if r.count {
		r.counts.reserve(r.n, n)
	}
	r.n = max(r.n, n)
}

// restored adds all rows of a part, which equal the saved ones.
func (r *rows) restored(p *table.Part) {
	r.reserve(p)
}

// meet adds the new rows. Unless blank is set, they count as saved with their initial values.
func (r *rows) meet(p *table.Part, blank bool) {
	if r.tracksValues && !blank {
		r.saved.begin(r.saved.n, p.Stored())
	}
	r.reserve(p)
}

// remove removes a row of a sparse table. The last row takes its position.
func (r *rows) remove(at int) {
	r.n--
	r.of.fill(at, r.n)
	if r.tracksValues {
		r.saved.remove(at)
	}
	if r.count {
		r.counts.fill(at, r.n)
	}
}

// used counts an update of rows, all of which must be known.
func (r *rows) used(p *table.Part, first perdure.RowID, ids []perdure.RowID, count int) {
	if r.whole {
		bump(r.counts.rows(0, 1), count)
		return
	}
	if ids == nil {
		for at := int(first - p.First); count > 0; {
			n := bump(r.counts.upTo(at, at+count), 1)
			at, count = at+n, count-n
		}
		return
	}
	var found [batch]int
	for len(ids) > 0 {
		n := min(len(ids), batch)
		p.Positions(ids[:n], found[:n])
		for _, at := range found[:n] {
			bump(r.counts.rows(at, 1), 1)
		}
		ids = ids[n:]
	}
}

// bump increases counts, saturating at 4 bytes, and returns their number.
func bump(counts []uint32, more int) int {
	for i, c := range counts {
		counts[i] = uint32(min(uint64(c)+uint64(more), math.MaxUint32))
	}
	return len(counts)
}

// keep records the current values of the rows of chosen units.
func (r *rows) keep(p *table.Part, units []table.Run) {
	if r.tracksValues {
		for _, run := range r.rowsOf(p, units) {
			r.saved.keep(run)
		}
	}
	if !r.count && !r.moves {
		return
	}
	for _, run := range units {
		if r.count {
			r.counts.each(run, func(counts []uint32) { clear(counts) })
		}
		if r.moves {
			r.of.each(run, func(of []location) {
				for i := range of {
					of[i] |= chosen
				}
			})
		}
	}
}

// chosen calls f with the place of each unit in a choice.
func (r *rows) chosen(units []table.Run, f func(of *location)) {
	if !r.moves {
		for _, run := range units {
			r.of.each(run, func(of []location) {
				for i := range of {
					f(&of[i])
				}
			})
		}
		return
	}
	r.of.each(table.Run{Rows: r.n}, func(of []location) {
		for i := range of {
			if of[i]&chosen != 0 {
				of[i] &^= chosen
				f(&of[i])
			}
		}
	})
}
