package table

import (
	"fmt"

	"github.com/perdure/perdure"
)

// insertInitial assigns a position and the initial values to a row of a sparse table, unless it is stored already.
func (p *Part) insertInitial(id perdure.RowID) (at int) {
	at, added := p.add(id)
	if !added { // occurs twice in one update
		return at
	}
	for i := range p.planes[1:] {
		clear(p.planes[1+i].rows(at, 1)) // may hold the state of an evicted row
	}
	fillInitial(p.planes[0].rows(at, 1), p.Spec.Init, p.seed, p.id, id)
	if p.Spec.Evict > 0 {
		p.touched.rows(at, 1)[0] = 0
	}
	return at
}

// add assigns a position to a row of a sparse table, unless it has one. The content of a new row is undefined.
func (p *Part) add(id perdure.RowID) (at int, added bool) {
	at, added = p.index.Add(id)
	if !added {
		return at, false
	}
	p.reserve(at + 1)
	return at, true
}

// reserve reserves memory for n rows of a sparse table, except for their ids.
func (p *Part) reserve(n int) {
	for i := range p.planes {
		p.planes[i].reserve(n)
	}
	if p.Spec.Evict > 0 {
		p.touched.reserve(n)
	}
}

// touch records the clock of an update of rows, if the table evicts rows.
func (p *Part) touch(at []int, clock perdure.Clock) {
	if p.Spec.Evict == 0 {
		return
	}
	for _, at := range at {
		c := &p.touched.pieces[at>>idShift][at&(1<<idShift-1)]
		*c = max(*c, uint32(clock))
	}
}

// Evict removes the rows that were not updated for more than Spec.Evict clocks, unless that is 0, and returns their
// number. Before each removal it calls gone, if not nil, with the row and its position; afterwards the last row has
// that position. Call Evict when the shard's MinClock becomes min. It scans the rows only when min passes a multiple of
// a quarter of Spec.Evict, so calling it at every clock is cheap. A row whose newest update has clock c is removed when
// MinClock reaches c + Evict + max(1, Evict/4) at the latest, and is kept while MinClock is at most c + Evict.
//
// The rows of a part and their order depend only on the calls, even after a restore, provided that updates after a call
// have clocks of at least its min, as MinClock guarantees. A restored part scans all rows once more and removes none.
func (p *Part) Evict(min perdure.Clock, gone func(row perdure.RowID, at int)) (evicted int) {
	if p.Spec.Evict == 0 {
		return 0
	}
	step := max(1, p.Spec.Evict/4)
	oldest := min/step*step - p.Spec.Evict // oldest clock that is kept
	if oldest <= p.evictedBefore {
		return 0
	}
	p.evictedBefore = oldest
	n := p.index.Len()
	for end := n; end > 0; end -= batch { // from the end, so that a row that fills a hole is one to be kept
		var old [batch]int
		k := 0
		for at := end - 1; at >= max(0, end-batch); at-- {
			if perdure.Clock(p.touched.rows(at, 1)[0]) < oldest {
				old[k] = at
				k++
			}
		}
		for i := 0; i < k && gone != nil; i++ {
			gone(p.index.ID(old[i]), old[i])
		}
		p.removeRows(old[:k])
	}
	for i := range p.planes {
		p.planes[i].trim(p.index.Len())
	}
	p.touched.trim(p.index.Len())
	return n - p.index.Len()
}

// removeRows removes rows, at most batch, ordered from last to first. The last row of the part takes the position of
// each, so that no gaps arise.
func (p *Part) removeRows(rows []int) {
	var ids, tail [batch]perdure.RowID
	var at [batch]int
	for i, row := range rows {
		ids[i], tail[i] = p.index.ID(row), p.index.ID(p.index.Len()-1-i)
	}
	p.index.FindAll(tail[:len(rows)], at[:]) // prefetches the memory that Remove changes
	p.index.FindAll(ids[:len(rows)], at[:])
	for i, hole := range rows {
		p.beforeChange(hole, 1)
		p.beforeChange(p.index.Len()-1, 1)
		p.index.Remove(ids[i])
		last := p.index.Len()
		for i := range p.planes {
			copy(p.planes[i].rows(hole, 1), p.planes[i].rows(last, 1))
		}
		copy(p.touched.rows(hole, 1), p.touched.rows(last, 1))
	}
}

// Image is the complete content of a part, as pieces of the part's own memory, in row order; nothing is copied. The
// pieces of each list hold Rows rows together. Their boundaries are a function of the table's spec and Rows.
type Image struct {
	Rows    int
	IDs     [][]perdure.RowID // sparse: the rows' ids
	Touched [][]uint32        // sparse, with Spec.Evict: the highest clock of each row's updates
	Planes  [][][]float32     // the values, then the rule's state: planes as large as the values, then one value a row
}

// Image returns the part's content. It is valid until the part changes next. Writing to the pieces changes the part:
// see NewUninitialized.
func (p *Part) Image() Image {
	m := Image{Rows: p.Stored()}
	if p.Spec.Sparse {
		m.IDs = p.index.ids.image(m.Rows)
	}
	if p.Spec.Evict > 0 {
		m.Touched = p.touched.image(m.Rows)
	}
	for i := range p.planes {
		m.Planes = append(m.Planes, p.planes[i].image(m.Rows))
	}
	return m
}

// FinishRestore completes a part of NewUninitialized after its image has been read. The part is then equivalent to the
// one that the image was taken from. Its error is ErrCorruptImage.
func (p *Part) FinishRestore() error {
	if !p.Spec.Sparse {
		return nil
	}
	if id, ok := p.index.restore(p.index.Len()); !ok {
		return fmt.Errorf("%w: table %s contains row %d twice", ErrCorruptImage, p.Spec.Name, id)
	}
	return nil
}
