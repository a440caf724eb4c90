package table

import "github.com/perdure/perdure"

// Access by position, as the ledger of a running checkpoint needs it.

// RowBytes returns the size of a row in a snapshot: its values and its rule's state; for a sparse table also its id
// and, with eviction, its clock.
func (p *Part) RowBytes() (n int) {
	for i := range p.planes {
		n += 4 * p.planes[i].width
	}
	if p.Spec.Sparse {
		n += 8
	}
	if p.Spec.Evict > 0 {
		n += 4
	}
	return n
}

// Values returns the values of at most n rows from a position on, and of at least one unless there are no more. They
// alias the part.
func (p *Part) Values(from, n int) []float32 {
	c := &p.planes[0]
	n = min(n, p.Stored()-from)
	if n <= 0 {
		return nil
	}
	if shift := c.shift & 63; shift < singlePiece {
		n = min(n, 1<<shift-from&(1<<shift-1))
	}
	return c.rows(from, n)
}

// Initial sets dst, of length Dim, to a row's initial values.
func (p *Part) Initial(dst []float32, row perdure.RowID) {
	fillInitial(dst, p.Spec.Init, p.seed, p.id, row)
}

// Positions sets at[i] to the position of the row ids[i]. For a sparse part it is -1 if the row is not stored.
func (p *Part) Positions(ids []perdure.RowID, at []int) { p.find(ids, at) }
