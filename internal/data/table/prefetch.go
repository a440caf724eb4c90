package table

import "unsafe"

// Rows that are asked for at random lie in memory that the processor cannot
// foresee. What costs is to wait for each in turn, so the next rows are on their
// way while some are worked on: about linesAhead lines of 64 bytes, which is what
// the processor can wait for at once. Of a long row it is enough to ask for the
// first lines.
const (
	linesAhead = 32
	mostLines  = 8
)

// lines returns how many of a row's lines are asked for.
func (c *column[T]) lines() int {
	return min((c.width*int(unsafe.Sizeof(*new(T)))+63)/64, mostLines)
}

// ahead returns how many rows are asked for at once, of which the first planes
// will be used.
func (p *Part) ahead(planes int) int {
	lines := 0
	for i := range p.planes[:planes] {
		lines += p.planes[i].lines()
	}
	return max(1, linesAhead/lines)
}

// bring asks for the first planes of the rows at positions, at most
// linesAhead, to be brought from memory. Positions of -1 are passed over.
func (p *Part) bring(at []int, planes int) {
	var wanted [linesAhead]unsafe.Pointer
	for i := range p.planes[:planes] {
		c := &p.planes[i]
		n := 0
		for _, at := range at {
			if at >= 0 {
				wanted[n] = unsafe.Pointer(unsafe.SliceData(c.rows(at, 1)))
				n++
			}
		}
		prefetch(&wanted[0], n, c.lines())
	}
}
