package table

import (
	"fmt"

	"github.com/perdure/perdure"
)

// store gives a row of a sparse table its place, unless it has one, and its
// initial values.
func (p *Part) store(id perdure.RowID) (at int) {
	at, added := p.add(id)
	if !added { // named twice in one update
		return at
	}
	for i := range p.planes[1:] {
		clear(p.planes[1+i].rows(at, 1)) // an evicted row may have been here
	}
	fillInitial(p.planes[0].rows(at, 1), p.Spec.Init, p.seed, p.id, id)
	if p.Spec.Evict > 0 {
		p.touched.rows(at, 1)[0] = 0
	}
	return at
}

// add gives a row of a sparse table its place, unless it has one. What it holds is not defined.
func (p *Part) add(id perdure.RowID) (at int, added bool) {
	at, added = p.index.Add(id)
	if !added {
		return at, false
	}
	p.room(at + 1)
	return at, true
}

// room makes room for n rows of a sparse table, beside their ids.
func (p *Part) room(n int) {
	for i := range p.planes {
		p.planes[i].reserve(n)
	}
	if p.Spec.Evict > 0 {
		p.touched.reserve(n)
	}
}

// touch notes the clock of an update of rows, if it will be asked for.
func (p *Part) touch(at []int, clock perdure.Clock) {
	if p.Spec.Evict == 0 {
		return
	}
	for _, at := range at {
		c := &p.touched.pieces[at>>idShift][at&(1<<idShift-1)]
		*c = max(*c, uint32(clock))
	}
}

// Evict drops rows that were not updated for more than Spec.Evict clocks, if
// that is not 0, and returns how many; gone, if not nil, is told each before it
// goes, with its position, at which the last row then is. It is called when the
// shard's MinClock has become min. It looks at the rows only when min has
// reached a multiple of a quarter of Spec.Evict, so that it is cheap to call at
// every clock: a row whose newest update is of clock c is gone when MinClock is
// c + Evict + max(1, Evict/4), and it is there while MinClock is at most
// c + Evict.
//
// Which rows a part holds, and in which order, stays a function of the calls,
// also across a restored image, given that updates after a call have clocks of
// at least its min, as MinClock promises: a part that was restored looks at all
// rows once more, and finds nothing.
func (p *Part) Evict(min perdure.Clock, gone func(row perdure.RowID, at int)) (evicted int) {
	if p.Spec.Evict == 0 {
		return 0
	}
	step := max(1, p.Spec.Evict/4)
	oldest := min/step*step - p.Spec.Evict // that stays
	if oldest <= p.swept {
		return 0
	}
	p.swept = oldest
	n := p.index.Len()
	for end := n; end > 0; end -= batch { // from the end: what fills a hole is known to stay
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
		p.drop(old[:k])
	}
	for i := range p.planes {
		p.planes[i].trim(p.index.Len())
	}
	p.touched.trim(p.index.Len())
	return n - p.index.Len()
}

// drop takes rows out, at most batch, from the last to the first. The last row
// of all takes the place of each, so that rows stay without gaps.
func (p *Part) drop(rows []int) {
	var ids, tail [batch]perdure.RowID
	var at [batch]int
	for i, row := range rows {
		ids[i], tail[i] = p.index.ID(row), p.index.ID(p.index.Len()-1-i)
	}
	p.index.FindAll(tail[:len(rows)], at[:]) // brings what Remove changes from memory
	p.index.FindAll(ids[:len(rows)], at[:])
	for i, hole := range rows {
		p.putAside(hole, 1)
		p.putAside(p.index.Len()-1, 1)
		p.index.Remove(ids[i])
		last := p.index.Len()
		for i := range p.planes {
			copy(p.planes[i].rows(hole, 1), p.planes[i].rows(last, 1))
		}
		copy(p.touched.rows(hole, 1), p.touched.rows(last, 1))
	}
}

// Image is all that a part holds, as pieces of the part's own memory, in row
// order: nothing is copied. Each list's pieces hold Rows rows in all; where they
// are cut is a function of the table's spec and Rows.
type Image struct {
	Rows    int
	IDs     [][]perdure.RowID // sparse: the rows' ids
	Touched [][]uint32        // sparse, with Spec.Evict: the highest clock of each row's updates
	Planes  [][][]float32     // the values, then the rule's state: planes as large as the values, then one value a row
}

// Image returns the part's content. It holds until the part is next changed, and
// a change of the pieces changes the part: see Blank.
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

// Restored completes a Blank part whose image has been read in. From then on it
// is what the part was that the image is of. The error is ErrCorruptImage.
func (p *Part) Restored() error {
	if !p.Spec.Sparse {
		return nil
	}
	if id, ok := p.index.restore(p.index.Len()); !ok {
		return fmt.Errorf("%w: table %s has row %d twice", ErrCorruptImage, p.Spec.Name, id)
	}
	return nil
}
