package table

// pieceBytes is about how large a piece of a growing column is: large enough
// that the collector has little to look after, and small enough that the room
// which is made ahead of the rows does not count.
const pieceBytes = 1 << 20

// whole is the shift of a column that lies in one piece.
const whole = 62

// column is an array of rows of width values each. It grows without being
// copied: it lies in pieces of 1<<shift rows, of which all but the last are
// full. Only the first piece, while it is the only one, grows by being copied,
// so that a small column is small. How many rows are in use is the owner's
// to know.
type column[T any] struct {
	width  int
	shift  uint8
	room   int // rows there is memory for
	pieces [][]T
}

// pieceShift returns the shift for pieces of at most the given size, or of one
// row.
func pieceShift(rowBytes, bytes int) (shift uint8) {
	for rowBytes<<(shift+1) <= bytes {
		shift++
	}
	return shift
}

// rows returns n rows from a position on, which must lie in one piece.
func (c *column[T]) rows(at, n int) []T {
	shift := c.shift & 63
	from := (at & (1<<shift - 1)) * c.width
	return c.pieces[at>>shift][from : from+n*c.width]
}

// reserve makes room for n rows. What they hold is not defined.
func (c *column[T]) reserve(n int) {
	if n <= c.room {
		return
	}
	full := 1 << c.shift
	if c.room < full {
		rows := min(full, max(n, c.room+c.room/8+1))
		first := make([]T, rows*c.width)
		if len(c.pieces) == 1 {
			copy(first, c.pieces[0])
		}
		c.pieces, c.room = append(c.pieces[:0], first), rows
	}
	for c.room < n {
		c.pieces, c.room = append(c.pieces, make([]T, full*c.width)), c.room+full
	}
}

// trim gives back the memory behind the first n rows, but for one piece: a
// column that grows and shrinks around the end of a piece must not make that
// piece every time.
func (c *column[T]) trim(n int) {
	keep := (n-1)>>c.shift + 2
	if keep < len(c.pieces) {
		clear(c.pieces[keep:])
		c.pieces, c.room = c.pieces[:keep], keep<<c.shift
	}
}

// image returns the first n rows as the pieces they lie in.
func (c *column[T]) image(n int) (pieces [][]T) {
	for at := 0; at < n; at += 1 << c.shift {
		pieces = append(pieces, c.rows(at, min(n-at, 1<<c.shift)))
	}
	return pieces
}
