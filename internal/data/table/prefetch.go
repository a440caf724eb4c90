package table

import "unsafe"

// Rows at random positions are in memory that the processor cannot predict, and waiting for each in turn is expensive.
// So the next rows are prefetched while some are processed: about linesAhead lines of 64 bytes, the number of loads
// that the processor can have in flight. For a long row, prefetching the first lines is enough.
const (
	linesAhead = 32
	maxLines   = 8
)

// lines returns the number of a row's cache lines to prefetch.
func (c *column[T]) lines() int {
	return min((c.width*int(unsafe.Sizeof(*new(T)))+63)/64, maxLines)
}

// prefetchRows returns the number of rows to prefetch together if the first planes will be used.
func (p *Part) prefetchRows(planes int) int {
	lines := 0
	for i := range p.planes[:planes] {
		lines += p.planes[i].lines()
	}
	return max(1, linesAhead/lines)
}

// prefetchAt prefetches the first planes of the rows at the given positions, at most linesAhead. Positions of -1 are
// skipped.
func (p *Part) prefetchAt(at []int, planes int) {
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
