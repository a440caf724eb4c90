package table

// pieceBytes is the approximate size of a piece of a growing column: large enough to keep the number of objects for the
// garbage collector small, and small enough that memory allocated in advance is negligible.
const pieceBytes = 1 << 20

// singlePiece is the shift of a column that consists of a single piece.
const singlePiece = 62

// column is an array of rows of width values each. It grows without copying: it consists of pieces of 1<<shift rows,
// all full except the last. Only while there is a single piece does it grow by copying, so that a small column stays
// small. The owner keeps track of the number of rows in use.
type column[T any] struct {
	width    int
	shift    uint8
	capacity int // capacity in rows
	pieces   [][]T
}

// pieceShift returns the shift for pieces of at most the given size, but at least one row.
func pieceShift(rowBytes, bytes int) (shift uint8) {
	for rowBytes<<(shift+1) <= bytes {
		shift++
	}
	return shift
}

// rows returns n rows from a position on. They must be in one piece.
func (c *column[T]) rows(at, n int) []T {
	shift := c.shift & 63
	from := (at & (1<<shift - 1)) * c.width
	return c.pieces[at>>shift][from : from+n*c.width]
}

// reserve allocates memory for n rows. Their contents are undefined.
func (c *column[T]) reserve(n int) {
	if n <= c.capacity {
		return
	}
	full := 1 << c.shift
	if c.capacity < full {
		rows := min(full, max(n, c.capacity+c.capacity/8+1))
		first := make([]T, rows*c.width)
		if len(c.pieces) == 1 {
			copy(first, c.pieces[0])
		}
		c.pieces, c.capacity = append(c.pieces[:0], first), rows
	}
	for c.capacity < n {
		c.pieces, c.capacity = append(c.pieces, make([]T, full*c.width)), c.capacity+full
	}
}

// trim releases the memory after the first n rows, except for one piece: a column whose length varies around the end of
// a piece must not reallocate that piece each time.
func (c *column[T]) trim(n int) {
	keep := (n-1)>>c.shift + 2
	if keep < len(c.pieces) {
		clear(c.pieces[keep:])
		c.pieces, c.capacity = c.pieces[:keep], keep<<c.shift
	}
}

// image returns the pieces of the first n rows.
func (c *column[T]) image(n int) (pieces [][]T) {
	for at := 0; at < n; at += 1 << c.shift {
		pieces = append(pieces, c.rows(at, min(n-at, 1<<c.shift)))
	}
	return pieces
}
