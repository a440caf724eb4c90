package scar

import "github.com/perdure/perdure/internal/data/table"

// pieceBytes is about how large a piece of a plane is, as of a table's columns.
const pieceBytes = 1 << 20

// plane is an array of rows of width values each, in pieces of 1<<shift rows, so that it
// grows without being copied: only its last piece is, until it is whole.
type plane[T any] struct {
	width  int
	shift  uint8
	pieces [][]T
}

func newPlane[T float32 | uint32 | place](width int) plane[T] {
	p := plane[T]{width: width}
	for 4*width<<(p.shift+1) <= pieceBytes {
		p.shift++
	}
	return p
}

// rows returns n rows from one on, which must lie in one piece.
func (p *plane[T]) rows(at, n int) []T {
	from := (at & (1<<(p.shift&63) - 1)) * p.width
	return p.pieces[at>>(p.shift&63)][from : from+n*p.width]
}

// upTo returns the rows from one on that lie in its piece, but none from end on.
func (p *plane[T]) upTo(at, end int) []T {
	return p.rows(at, min(end, (at>>p.shift+1)<<p.shift)-at)
}

// each calls f for rows, as far as they lie together.
func (p *plane[T]) each(run table.Run, f func(rows []T)) {
	for at, end := run.First, run.First+run.Rows; at < end; {
		rows := p.upTo(at, end)
		f(rows)
		at += len(rows) / p.width
	}
}

// reserve makes rows of zeros of those from was to n-1.
func (p *plane[T]) reserve(was, n int) {
	for at := was; at < n; {
		end := min(n, (at>>p.shift+1)<<p.shift)
		p.room(end)
		clear(p.rows(at, end-at))
		at = end
	}
}

// room makes memory for the piece of row n-1, up to it. What it holds is not defined.
func (p *plane[T]) room(n int) {
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

// fill moves the last row, last, to a hole, and lets go of memory behind it, but for a piece:
// a plane that grows and shrinks around the end of one must not make it every time.
func (p *plane[T]) fill(hole, last int) {
	copy(p.rows(hole, 1), p.rows(last, 1))
	if keep := (last-1)>>p.shift + 2; keep < len(p.pieces) {
		clear(p.pieces[keep:])
		p.pieces = p.pieces[:keep]
	}
}
