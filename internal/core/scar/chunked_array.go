package scar

import "github.com/perdure/perdure/internal/data/table"

// pieceBytes is the approximate size of a piece of a plane, the same as for a table's columns.
const pieceBytes = 1 << 20

// chunkedArray is an array of rows of width values each, in pieces of 1<<shift rows. It grows without being copied,
// except for its last piece until that is full.
type chunkedArray[T any] struct {
	width  int
	shift  uint8
	pieces [][]T
}

func newChunkedArray[T float32 | uint32 | location](width int) chunkedArray[T] {
	p := chunkedArray[T]{width: width}
	for 4*width<<(p.shift+1) <= pieceBytes {
		p.shift++
	}
	return p
}

// rows returns n rows starting at row at, which must lie in one piece.
func (p *chunkedArray[T]) rows(at, n int) []T {
	from := (at & (1<<(p.shift&63) - 1)) * p.width
	return p.pieces[at>>(p.shift&63)][from : from+n*p.width]
}

// upTo returns the rows starting at row at that lie in its piece, up to end.
func (p *chunkedArray[T]) upTo(at, end int) []T {
	return p.rows(at, min(end, (at>>p.shift+1)<<p.shift)-at)
}

// each calls f for the rows of a run, one contiguous range at a time.
func (p *chunkedArray[T]) each(run table.Run, f func(rows []T)) {
	for at, end := run.First, run.First+run.Rows; at < end; {
		rows := p.upTo(at, end)
		f(rows)
		at += len(rows) / p.width
	}
}

// reserve adds the rows was to n-1, set to zero.
func (p *chunkedArray[T]) reserve(was, n int) {
	for at := was; at < n; {
		end := min(n, (at>>p.shift+1)<<p.shift)
		p.allocate(end)
		clear(p.rows(at, end-at))
		at = end
	}
}

// allocate allocates memory for the piece that contains row n-1, up to that row. The memory's contents are undefined.
func (p *chunkedArray[T]) allocate(n int) {
	piece := (n - 1) >> p.shift
	for piece >= len(p.pieces) {
		p.pieces = append(p.pieces, nil)
	}
	need, have := (n-piece<<p.shift)*p.width, p.pieces[piece]
	if len(have) < need {
		most := p.width << p.shift
		p.pieces[piece] = make([]T, min(most, max(need, len(have)+len(have)/2)))
		copy(p.pieces[piece], have)
	}
}

// fill moves the last row to a hole, and releases memory after it except for one piece. Otherwise a plane that grows
// and shrinks around a piece's end would reallocate the piece every time.
func (p *chunkedArray[T]) fill(hole, last int) {
	copy(p.rows(hole, 1), p.rows(last, 1))
	if keep := (last-1)>>p.shift + 2; keep < len(p.pieces) {
		clear(p.pieces[keep:])
		p.pieces = p.pieces[:keep]
	}
}
