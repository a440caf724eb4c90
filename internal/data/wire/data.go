package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/packed"
)

// Rows identifies rows of a table in one of two ways: as a run of consecutive rows, or as a
// list of row ids.
//
//	 0      4     table (0xFFFFFFFF: the slot's state; 0xFFFFFFFE: the update's basis;
//	              0xFFFFFFFD: the update was made while its shard was unavailable)
//	 4      4     mode: 0 run, 1 list; in an update also 2, the table's weight
//	 8      8     count n of rows (slot state: of bytes; basis: of clocks)
//	16      8     run: the first row (basis: the clock; weight: a float64); list: 0
//	24      8·n   list only: the row ids
//
// In an update, a multiple of 4 is added to the mode if the values are packed or rounded: see AppendPackedBlock and
// AppendEncodedBlock.
type Rows struct {
	Table perdure.TableID
	First perdure.RowID   // run: the first row
	Count int             // run: rows; list: len(IDs)
	IDs   []perdure.RowID // nil for a run
}

const rowsBytes = 24

// stateBlock marks the block with a slot's state.
const stateBlock = perdure.TableID(math.MaxUint32)

// basisBlock marks the block with the clocks that an update was computed from.
const basisBlock = stateBlock - 1

// outageBlock marks the block that says that an update was made while its shard was unavailable.
const outageBlock = stateBlock - 2

// NoBasis is the Basis of an update without a basis block.
const NoBasis = perdure.Clock(-1)

// ID returns the i-th row's id.
func (r *Rows) ID(i int) perdure.RowID {
	if r.IDs != nil {
		return r.IDs[i]
	}
	return r.First + perdure.RowID(i)
}

// Slice returns rows i to j-1 of r.
func (r *Rows) Slice(i, j int) *Rows {
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
	dst = slices.Grow(dst, rowsBytes+8*len(r.IDs)+8) // 8: the number of values in the head of a block
	dst = le.AppendUint32(dst, uint32(r.Table))
	dst = le.AppendUint32(dst, mode)
	dst = le.AppendUint64(dst, uint64(r.Count))
	dst = le.AppendUint64(dst, first)
	for _, id := range r.IDs {
		dst = le.AppendUint64(dst, uint64(id))
	}
	return dst
}

// ParseRows reads a Rows from the start of src and returns the rest. Its ids alias src if the machine allows.
func ParseRows(src []byte, r *Rows) (rest []byte, err error) {
	if len(src) < rowsBytes {
		return nil, fmt.Errorf("%w: %d bytes are too few to identify rows", ErrPayload, len(src))
	}
	return parseRowList(src, r, binary.LittleEndian.Uint32(src[4:]))
}

// parseRowList is ParseRows for a head that is complete, with the given mode.
func parseRowList(src []byte, r *Rows, mode uint32) (rest []byte, err error) {
	le := binary.LittleEndian
	n := le.Uint64(src[8:])
	*r = Rows{Table: perdure.TableID(le.Uint32(src)), First: perdure.RowID(le.Uint64(src[16:])), Count: int(n)}
	src = src[rowsBytes:]
	if n > MaxPayload*8 {
		return nil, fmt.Errorf("%w: %d rows are too many for one message", ErrPayload, n)
	}
	switch mode {
	case 0:
		return src, nil
	case 1:
		if uint64(len(src))/8 < n {
			return nil, fmt.Errorf("%w: %d row ids announced, but only %d bytes present", ErrPayload, n, len(src))
		}
		r.First, r.IDs = 0, rowIDs(src[:8*n])
		return src[8*n:], nil
	}
	return nil, fmt.Errorf("%w: unknown row mode %d", ErrPayload, mode)
}

// rowIDs returns the ids in src, whose length is a multiple of 8: an alias of src if the machine allows, otherwise a
// copy. It is never nil.
func rowIDs(src []byte) []perdure.RowID {
	if len(src) == 0 {
		return []perdure.RowID{}
	}
	p := unsafe.Pointer(&src[0])
	if littleEndian && uintptr(p)%8 == 0 {
		return unsafe.Slice((*perdure.RowID)(p), len(src)/8)
	}
	ids := make([]perdure.RowID, len(src)/8)
	for i := range ids {
		ids[i] = perdure.RowID(binary.LittleEndian.Uint64(src[8*i:]))
	}
	return ids
}

// Answer is the payload of KindRows, the response to a Get: the values of the requested rows, in the requested order,
// and how many updates the shard's rows contained then. By offset and size in bytes, for n slots and m values, it
// consists of:
//
//	 0      8     the shard's sequence number: how many updates its rows contained
//	 8      8     n, the length of the applied vector
//	16      8     microseconds: for a Get, how long it waited for the shard's MinClock; for
//	              a Push, the time since the shard reached its MinClock
//	24      8·n   the applied vector: for each slot, how many of its clocks the rows contained
//	24+8n   4·m   the values
//
// With FlagPacked, FlagBF16 or FlagInt8 the values are packed or rounded, and take fewer bytes: see package packed.
type Answer struct {
	State
	Values   []float32 // nil if they are packed or rounded: see Unpack
	packed   []byte    // as received
	encoding perdure.Encoding
}

// EncodingOf returns the encoding that the flags of a Get or of Rows name.
func EncodingOf(flags uint16) perdure.Encoding {
	switch {
	case flags&FlagInt8 != 0:
		return perdure.EncodingInt8
	case flags&FlagBF16 != 0:
		return perdure.EncodingBF16
	}
	return perdure.EncodingFloat32
}

// FlagOf returns the flag that names an encoding. Reads have no 2bit.
func FlagOf(e perdure.Encoding) uint16 {
	switch e {
	case perdure.EncodingBF16:
		return FlagBF16
	case perdure.EncodingInt8:
		return FlagInt8
	}
	return 0
}

// Unpack returns the values of an answer, which must be those of rows rows of dim values. It unpacks or decodes values
// into room, growing it if necessary.
func (a *Answer) Unpack(rows, dim int, room *[]float32) ([]float32, error) {
	most := MaxPayload / 4 / dim
	if a.packed == nil || rows > most {
		if rows > most || len(a.Values) != rows*dim {
			return nil, fmt.Errorf("%w: %d values do not fit %d rows of %d values", ErrPayload, len(a.Values), rows,
				dim)
		}
		return a.Values, nil
	}
	n := rows * dim
	var values, rest []byte
	var err error
	if a.encoding == perdure.EncodingFloat32 {
		values, _, rest, err = packed.Split(a.packed, n)
	} else {
		values, rest, err = packed.SplitEncoded(a.packed, a.encoding, rows, dim)
	}
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d extra bytes follow the values", len(rest))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %d rows of %d values: %w", ErrPayload, rows, dim, err)
	}
	if cap(*room) < n {
		*room = make([]float32, n)
	}
	all := (*room)[:n]
	if a.encoding == perdure.EncodingFloat32 {
		packed.Expand(all, values)
	} else {
		packed.Decode(all, a.encoding, dim, values)
	}
	return all, nil
}

// IsPacked reports whether the answer's values are packed or rounded.
func (a *Answer) IsPacked() bool { return a.packed != nil }

// State describes the updates that an answer's rows contain.
type State struct {
	Seq          uint64
	WaitedMicros uint64 // microseconds
	Applied      []perdure.Clock
}

// AppendState appends an Answer without its values, which must follow.
func AppendState(dst []byte, s *State) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, s.Seq)
	dst = le.AppendUint64(dst, uint64(len(s.Applied)))
	dst = le.AppendUint64(dst, s.WaitedMicros)
	for _, c := range s.Applied {
		dst = le.AppendUint64(dst, uint64(c))
	}
	return dst
}

// stateBytes is the size of a State without its vector.
const stateBytes = 24

// AnswerHeaderBytes is the size of an Answer before its values.
func AnswerHeaderBytes(slots int) int { return stateBytes + 8*slots }

// parse reads a State, reusing its vector, and returns the rest of src.
func (s *State) parse(src []byte) (rest []byte, err error) {
	if len(src) < stateBytes {
		return nil, fmt.Errorf("%w: an answer of %d bytes is too short", ErrPayload, len(src))
	}
	le := binary.LittleEndian
	s.Seq, s.WaitedMicros = le.Uint64(src), le.Uint64(src[16:])
	n := le.Uint64(src[8:])
	src = src[stateBytes:]
	if n > uint64(len(src)/8) {
		return nil, fmt.Errorf("%w: applied vector of %d slots announced, but only %d bytes present", ErrPayload, n,
			len(src))
	}
	s.Applied = s.Applied[:0]
	for i := range n {
		s.Applied = append(s.Applied, perdure.Clock(le.Uint64(src[8*i:])))
	}
	return src[8*n:], nil
}

// ParseAnswer reads an Answer, reusing a.Applied. Its values alias the payload. Only the caller knows the expected
// number of values and passes it to Unpack.
func ParseAnswer(f *Frame, a *Answer) error {
	src, err := a.parse(f.Payload)
	if err != nil {
		return err
	}
	return a.setValues(src, f)
}

// setValues sets the values: the rest of the payload, or its body.
func (a *Answer) setValues(src []byte, f *Frame) error {
	a.Values, a.packed, a.encoding = nil, nil, EncodingOf(f.Flags)
	if body := f.Body; len(body) > 0 {
		if len(src) > 0 {
			return fmt.Errorf("%w: %d extra bytes between the head and the body of an answer", ErrPayload, len(src))
		}
		src = body
	}
	if a.encoding != perdure.EncodingFloat32 {
		a.packed = src[:len(src):len(src)]
		return nil
	}
	if len(src)%4 != 0 {
		return fmt.Errorf("%w: %d bytes of values, not a multiple of 4", ErrPayload, len(src))
	}
	if f.Flags&FlagPacked != 0 {
		a.packed = src[:len(src):len(src)]
	} else {
		a.Values = Floats(src)
	}
	return nil
}

// Push is the payload of KindPush: changed rows of one table, or none in a frame that only reports the shard's state.
// It is an Answer with Rows between the state and the values; their encoding pads them to 8 bytes.
type Push struct {
	Answer
	Rows
}

// AppendPushHead appends a Push without its values, which must follow.
func AppendPushHead(dst []byte, s *State, r *Rows) []byte { return AppendRows(AppendState(dst, s), r) }

// ParsePush reads a Push, reusing p.Applied. Its ids and values alias the payload.
func ParsePush(f *Frame, p *Push) error {
	src, err := p.parse(f.Payload)
	if err != nil {
		return err
	}
	if src, err = ParseRows(src, &p.Rows); err != nil {
		return err
	}
	return p.setValues(src, f)
}

// AppendIDs appends the payload of KindIDs: the number of rows that the shard stores, the number of ids, and the ids.
func AppendIDs(dst []byte, stored int, ids []perdure.RowID) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stored))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(ids)))
	for _, id := range ids {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(id))
	}
	return dst
}

// ParseIDs decodes the output of AppendIDs. The ids alias src if the machine allows.
func ParseIDs(src []byte) (stored int, ids []perdure.RowID, err error) {
	le := binary.LittleEndian
	if len(src) < 16 || len(src)%8 != 0 || le.Uint64(src) > math.MaxInt64 ||
		le.Uint64(src[8:]) != uint64(len(src)/8-2) {
		return 0, nil, fmt.Errorf("%w: invalid row ids in %d bytes", ErrPayload, len(src))
	}
	return int(le.Uint64(src)), rowIDs(src[16:]), nil
}

// AppendCounts appends c as four int64: staged, ticked, applied, seen.
func AppendCounts(dst []byte, c protocol.Counts) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(c.Staged))
	dst = le.AppendUint64(dst, uint64(c.Ticked))
	dst = le.AppendUint64(dst, uint64(c.Applied))
	return le.AppendUint64(dst, uint64(c.Seen))
}

// ParseCounts decodes the output of AppendCounts.
func ParseCounts(src []byte) (c protocol.Counts, err error) {
	if len(src) != 32 {
		return c, fmt.Errorf("%w: counts have %d bytes, not 32", ErrPayload, len(src))
	}
	le := binary.LittleEndian
	return protocol.Counts{
		Staged:  perdure.Clock(le.Uint64(src)),
		Ticked:  perdure.Clock(le.Uint64(src[8:])),
		Applied: perdure.Clock(le.Uint64(src[16:])),
		Seen:    perdure.Clock(le.Uint64(src[24:])),
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

// FloatBytes returns the memory of v and reports whether it has the wire format. If so, it may be sent and received
// into directly.
func FloatBytes(v []float32) (b []byte, ok bool) {
	if !littleEndian || len(v) == 0 {
		return nil, false
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v)), true
}

// Floats returns the float32 values in src, whose length is a multiple of 4: an alias of src if the machine allows,
// otherwise a copy.
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
