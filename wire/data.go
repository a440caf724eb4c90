package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/perdure/perdure"
)

// Rows of a table are named in one of two ways: a run of consecutive rows, or a
// list of row ids.
//
//	 0      4     table (0xFFFFFFFF: the slot's saved state)
//	 4      4     mode: 0 run, 1 list
//	 8      8     count n of rows (of bytes, for the saved state)
//	16      8     run: the first row; list: 0
//	24      8·n   list only: the row ids
type Rows struct {
	Table perdure.TableID
	First perdure.RowID   // run: the first row
	Count int             // run: rows; list: len(IDs)
	IDs   []perdure.RowID // nil for a run
}

const rowsBytes = 24

// stateTable marks the block that holds a slot's saved state.
const stateTable = perdure.TableID(math.MaxUint32)

// ID returns the i-th row's id.
func (r *Rows) ID(i int) perdure.RowID {
	if r.IDs != nil {
		return r.IDs[i]
	}
	return r.First + perdure.RowID(i)
}

// Part returns the rows from the i-th to before the j-th.
func (r *Rows) Part(i, j int) *Rows {
	if r.IDs != nil {
		return &Rows{Table: r.Table, Count: j - i, IDs: r.IDs[i:j]}
	}
	return &Rows{Table: r.Table, First: r.First + perdure.RowID(i), Count: j - i}
}

// AppendRows appends the encoding of r.
func AppendRows(dst []byte, r *Rows) []byte {
	le := binary.LittleEndian
	mode, first := uint32(0), uint64(r.First)
	if r.IDs != nil {
		mode, first = 1, 0
	}
	dst = le.AppendUint32(dst, uint32(r.Table))
	dst = le.AppendUint32(dst, mode)
	dst = le.AppendUint64(dst, uint64(r.Count))
	dst = le.AppendUint64(dst, first)
	for _, id := range r.IDs {
		dst = le.AppendUint64(dst, uint64(id))
	}
	return dst
}

// ParseRows reads a Rows from the start of src and returns the rest.
func ParseRows(src []byte, r *Rows) (rest []byte, err error) {
	if len(src) < rowsBytes {
		return nil, fmt.Errorf("%w: %d bytes where rows are named", ErrPayload, len(src))
	}
	le := binary.LittleEndian
	mode, n := le.Uint32(src[4:]), le.Uint64(src[8:])
	*r = Rows{Table: perdure.TableID(le.Uint32(src)), First: perdure.RowID(le.Uint64(src[16:])), Count: int(n)}
	src = src[rowsBytes:]
	if n > MaxPayload*8 {
		return nil, fmt.Errorf("%w: %d rows in one message", ErrPayload, n)
	}
	switch mode {
	case 0:
		return src, nil
	case 1:
		if uint64(len(src))/8 < n {
			return nil, fmt.Errorf("%w: %d row ids announced, %d bytes there", ErrPayload, n, len(src))
		}
		r.First = 0
		r.IDs = make([]perdure.RowID, n)
		for i := range r.IDs {
			r.IDs[i] = perdure.RowID(le.Uint64(src[8*i:]))
		}
		return src[8*n:], nil
	}
	return nil, fmt.Errorf("%w: rows named in mode %d", ErrPayload, mode)
}

// Block is one table's part of an update: rows and their deltas, in row-major
// order, Dim values each.
type Block struct {
	Rows
	Values []float32
}

// AppendBlock appends the encoding of b: its rows, the number of values as 8
// bytes, the values as float32.
func AppendBlock(dst []byte, b *Block) []byte {
	dst = AppendRows(dst, &b.Rows)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(b.Values)))
	dst = AppendFloats(dst, b.Values)
	return pad8(dst)
}

// LastFloats returns the n values of the block that AppendBlock has just
// appended to dst: an alias of dst where the machine allows.
func LastFloats(dst []byte, n int) []float32 {
	end := len(dst)
	if n%2 == 1 {
		end -= 4 // padding: all before the values is aligned to 8 bytes
	}
	return Floats(dst[end-4*n : end])
}

// AppendStateBlock appends what a slot wants saved with its update.
func AppendStateBlock(dst, state []byte) []byte {
	r := Rows{Table: stateTable, Count: len(state)}
	dst = AppendRows(dst, &r)
	dst = append(dst, state...)
	return pad8(dst)
}

// pad8 keeps what follows aligned to 8 bytes from the payload's start.
func pad8(dst []byte) []byte {
	for len(dst)%8 != 0 {
		dst = append(dst, 0)
	}
	return dst
}

// ParseBlocks calls f for each table's block of an update's payload and returns
// the saved state in it, nil if there is none. The values given to f and the
// state alias the payload; f must not keep the values.
func ParseBlocks(payload []byte, f func(b *Block) error) (state []byte, err error) {
	size := len(payload)
	src := payload
	var b Block
	for len(src) > 0 {
		if src, err = ParseRows(src, &b.Rows); err != nil {
			return nil, err
		}
		if b.Table == stateTable {
			if b.Count > len(src) {
				return nil, fmt.Errorf("%w: saved state of %d bytes, %d there", ErrPayload, b.Count, len(src))
			}
			state = src[:b.Count:b.Count]
			src = skipPad(src[b.Count:], size)
			continue
		}
		if len(src) < 8 {
			return nil, fmt.Errorf("%w: block without values", ErrPayload)
		}
		n := binary.LittleEndian.Uint64(src)
		src = src[8:]
		if n > uint64(len(src)/4) {
			return nil, fmt.Errorf("%w: %d values announced, %d bytes there", ErrPayload, n, len(src))
		}
		b.Values = Floats(src[:4*n])
		src = skipPad(src[4*n:], size)
		if err := f(&b); err != nil {
			return nil, err
		}
	}
	return state, nil
}

// skipPad skips the zero bytes up to the next multiple of 8 from the start of a
// payload of the given size, of which rest is the end.
func skipPad(rest []byte, size int) []byte {
	at := size - len(rest)
	return rest[min(len(rest), (8-at%8)%8):]
}

// Answer is the payload of KindRows: what a Get is answered with. The rows are
// those asked for, in that order.
//
//	 0      8     seq: updates that the shard's rows contained
//	 8      8     n, length of the applied vector
//	16      8·n   the applied vector: for each slot, its clocks contained
//	16+8n   4·m   the values
type Answer struct {
	Seq     uint64
	Applied []perdure.Clock
	Values  []float32
}

// AppendAnswerHeader appends an Answer without its values, which follow.
func AppendAnswerHeader(dst []byte, seq uint64, applied []perdure.Clock) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, seq)
	dst = le.AppendUint64(dst, uint64(len(applied)))
	for _, c := range applied {
		dst = le.AppendUint64(dst, uint64(c))
	}
	return dst
}

// ParseAnswer reads an Answer. Its values alias src; the vector is a copy.
func ParseAnswer(src []byte, a *Answer) error {
	if len(src) < 16 {
		return fmt.Errorf("%w: answer of %d bytes", ErrPayload, len(src))
	}
	le := binary.LittleEndian
	a.Seq = le.Uint64(src)
	n := le.Uint64(src[8:])
	src = src[16:]
	if n > uint64(len(src)/8) {
		return fmt.Errorf("%w: applied vector of %d slots, %d bytes there", ErrPayload, n, len(src))
	}
	a.Applied = make([]perdure.Clock, n)
	for i := range a.Applied {
		a.Applied[i] = perdure.Clock(le.Uint64(src[8*i:]))
	}
	src = src[8*n:]
	if len(src)%4 != 0 {
		return fmt.Errorf("%w: %d bytes of values", ErrPayload, len(src))
	}
	a.Values = Floats(src)
	return nil
}

// AppendCounts appends c as three int64: staged, ticked, applied.
func AppendCounts(dst []byte, c perdure.Counts) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(c.Staged))
	dst = le.AppendUint64(dst, uint64(c.Ticked))
	return le.AppendUint64(dst, uint64(c.Applied))
}

// ParseCounts reads what AppendCounts wrote.
func ParseCounts(src []byte) (c perdure.Counts, err error) {
	if len(src) != 24 {
		return c, fmt.Errorf("%w: counts of %d bytes", ErrPayload, len(src))
	}
	le := binary.LittleEndian
	return perdure.Counts{
		Staged:  perdure.Clock(le.Uint64(src)),
		Ticked:  perdure.Clock(le.Uint64(src[8:])),
		Applied: perdure.Clock(le.Uint64(src[16:])),
	}, nil
}

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// AppendFloats appends values as little-endian float32.
func AppendFloats(dst []byte, values []float32) []byte {
	if len(values) == 0 {
		return dst
	}
	if littleEndian {
		return append(dst, unsafe.Slice((*byte)(unsafe.Pointer(&values[0])), 4*len(values))...)
	}
	for _, v := range values {
		dst = binary.LittleEndian.AppendUint32(dst, math.Float32bits(v))
	}
	return dst
}

// Floats returns the float32 values in src, whose length is a multiple of 4: an
// alias of src where the machine allows, else a copy.
func Floats(src []byte) []float32 {
	if len(src) == 0 {
		return nil
	}
	p := unsafe.Pointer(&src[0])
	if littleEndian && uintptr(p)%4 == 0 {
		return unsafe.Slice((*float32)(p), len(src)/4)
	}
	out := make([]float32, len(src)/4)
	for i := range out {
		out[i] = math.Float32frombits(binary.LittleEndian.Uint32(src[4*i:]))
	}
	return out
}
