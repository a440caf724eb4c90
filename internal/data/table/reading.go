package table

import "github.com/perdure/perdure"

// What a part's reader needs who goes by position, as the ledger of a running checkpoint does.

// RowBytes returns what a row takes in a snapshot: its values and its rule's state; of a
// sparse table its id, and with eviction its clock, too.
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

// Values returns the values of rows from a position on: of at most n, and of at least one
// unless there are no more. They alias the part.
func (p *Part) Values(from, n int) []float32 {
	c := &p.planes[0]
	n = min(n, p.Stored()-from)
	if n <= 0 {
		return nil
	}
	if shift := c.shift & 63; shift < whole {
		n = min(n, 1<<shift-from&(1<<shift-1))
	}
	return c.rows(from, n)
}

// Initial sets dst, of Dim values, to a row's initial ones.
func (p *Part) Initial(dst []float32, row perdure.RowID) {
	fillInitial(dst, p.Spec.Init, p.seed, p.id, row)
}

// Positions sets at[i] to the position of a row with ids[i]; of a sparse part's that is not
// stored to -1.
func (p *Part) Positions(ids []perdure.RowID, at []int) { p.find(ids, at) }
