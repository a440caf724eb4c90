package wire

import (
	"encoding/binary"
	"fmt"
	"math"
	"unsafe"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/packed"
)

// Rows of a table are named in one of two ways: a run of consecutive rows, or a
// list of row ids.
//
//	 0      4     table (0xFFFFFFFF: the slot's saved state; 0xFFFFFFFE: the update's basis;
//	              0xFFFFFFFD: it was made alone)
//	 4      4     mode: 0 run, 1 list; in an update also 2, the table's weight
//	 8      8     count n of rows (of bytes, for the saved state; of clocks, for the basis)
//	16      8     run: the first row (basis: the clock; weight: a float64); list: 0
//	24      8·n   list only: the row ids
//
// In an update 4 is added to the mode where the values are packed: see AppendPackedBlock.
type Rows struct {
	Table perdure.TableID
	First perdure.RowID   // run: the first row
	Count int             // run: rows; list: len(IDs)
	IDs   []perdure.RowID // nil for a run
}

const rowsBytes = 24

// stateTable marks the block that holds a slot's saved state.
const stateTable = perdure.TableID(math.MaxUint32)

// basisTable marks the block that says what an update was computed from.
const basisTable = stateTable - 1

// aloneTable marks the block that says that an update was made while its shard was out.
const aloneTable = stateTable - 2

// NoBasis is the Basis of an update that does not say what it was computed from.
const NoBasis = perdure.Clock(-1)

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

// ParseRows reads a Rows from the start of src and returns the rest. Its ids
// alias src where the machine allows.
func ParseRows(src []byte, r *Rows) (rest []byte, err error) {
	if len(src) < rowsBytes {
		return nil, fmt.Errorf("%w: %d bytes where rows are named", ErrPayload, len(src))
	}
	return rowsOf(src, r, binary.LittleEndian.Uint32(src[4:]))
}

// rowsOf is ParseRows of a head that is there, whatever mode it says.
func rowsOf(src []byte, r *Rows, mode uint32) (rest []byte, err error) {
	le := binary.LittleEndian
	n := le.Uint64(src[8:])
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
		r.First, r.IDs = 0, rowIDs(src[:8*n])
		return src[8*n:], nil
	}
	return nil, fmt.Errorf("%w: rows named in mode %d", ErrPayload, mode)
}

// rowIDs returns the ids in src, whose length is a multiple of 8: an alias of src
// where the machine allows, else a copy. It is never nil.
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

// Block is one table's part of an update: rows and their deltas, in row-major
// order, Dim values each.
type Block struct {
	Rows
	Values []float32
}

// modePacked is added to the mode of a block's rows where its values are packed: see package packed.
const modePacked = 4

// AppendPackedBlock appends the encoding of b with its values packed, and returns by how many bytes it is less than
// that of AppendBlock: 0, and nothing is appended, where that is little.
func AppendPackedBlock(dst []byte, b *Block) (with []byte, saved int) {
	if !packed.Pays(b.Values) {
		return dst, 0
	}
	start := len(dst)
	with, ok := packed.Append(AppendBlockHead(dst, b), b.Values)
	if !ok {
		return dst, 0
	}
	with[start+4] |= modePacked
	with = pad8(with)
	return with, rowsBytes + 8*len(b.IDs) + 8 + 4*(len(b.Values)+len(b.Values)%2) - (len(with) - start)
}

// AppendBlock appends the encoding of b: its rows, the number of values as 8
// bytes, the values as float32.
func AppendBlock(dst []byte, b *Block) []byte {
	dst = AppendBlockHead(dst, b)
	dst = AppendFloats(dst, b.Values)
	return pad8(dst)
}

// AppendBlockHead appends the encoding of b without its values: they must follow,
// as the end of the payload.
func AppendBlockHead(dst []byte, b *Block) []byte {
	dst = AppendRows(dst, &b.Rows)
	return binary.LittleEndian.AppendUint64(dst, uint64(len(b.Values)))
}

// AppendStateBlock appends what a slot wants saved with its update.
func AppendStateBlock(dst, state []byte) []byte {
	r := Rows{Table: stateTable, Count: len(state)}
	dst = AppendRows(dst, &r)
	dst = append(dst, state...)
	return pad8(dst)
}

// AppendBasisBlock appends what an update was computed from: the least MinClock, ≥ 0,
// of the rows, and how many of the slot's own clocks before it did not show in them. It
// is in the last part of the update, if in any.
func AppendBasisBlock(dst []byte, basis, lag perdure.Clock) []byte {
	return AppendRows(dst, &Rows{Table: basisTable, First: perdure.RowID(basis), Count: int(lag)})
}

// AppendAloneBlock appends that an update was computed from rows of its shard that were
// read while the shard was out. It is in the last part of the update, if in any.
func AppendAloneBlock(dst []byte) []byte { return AppendRows(dst, &Rows{Table: aloneTable}) }

// modeWeight marks a block that has no rows, but how much the update counts for its table.
const modeWeight = 2

// AppendWeightBlock appends how much an update counts for a table that combines updates by their weights. It is
// in the last part of the update, if in any.
func AppendWeightBlock(dst []byte, t perdure.TableID, weight float64) []byte {
	dst = AppendRows(dst, &Rows{Table: t, First: perdure.RowID(math.Float64bits(weight))})
	binary.LittleEndian.PutUint32(dst[len(dst)-rowsBytes+4:], modeWeight)
	return dst
}

// pad8 keeps what follows aligned to 8 bytes from the payload's start.
func pad8(dst []byte) []byte {
	for len(dst)%8 != 0 {
		dst = append(dst, 0)
	}
	return dst
}

// Blocks reads the payload of an update, block by block:
//
//	for b := wire.ReadBlocks(payload); b.Next(); {
//		… b.Block …
//	}
//
// after which b.Err says whether the payload was sound. Ids, values and state
// alias the payload.
type Blocks struct {
	Rows                 // of the present block
	Given  []float32     // its values; where they are packed those that were not left out
	Len    int           // how many values it has altogether
	State  []byte        // what the slot wants saved; nil: nothing so far
	Basis  perdure.Clock // MinClock of the oldest row that the update was computed from; NoBasis: not said so far
	Lag    perdure.Clock // how many of the slot's own clocks did not show in the rows
	Alone  bool          // these were read while the shard was out
	Weight float64       // the block has no rows, but how much the update counts for its table; 0: it has rows
	block  Block         // what Whole has returned
	packed []byte        // the present block's values, packed; nil: they are not
	most   int           // how many packed values the rest of the payload may have
	rest   []byte
	size   int
	err    error
}

// mostPacked bounds the packed values of one payload: with those that were left out they would fit in one as well. So
// whoever receives few bytes need not make much of them.
const mostPacked = MaxPayload / 4

// ReadBlocks begins to read a payload.
func ReadBlocks(payload []byte) Blocks {
	return Blocks{rest: payload, size: len(payload), most: mostPacked, Basis: NoBasis}
}

// Whole returns the present block with all its values. Those that are packed are unpacked into room, which grows where
// it has too little; it is used again by the next call. nil: into memory of their own.
func (b *Blocks) Whole(room *[]float32) *Block {
	b.block = Block{b.Rows, b.Given}
	if b.packed == nil {
		return &b.block
	}
	if room == nil {
		room = new([]float32)
	}
	if cap(*room) < b.Len {
		*room = make([]float32, b.Len)
	}
	b.block.Values = (*room)[:b.Len]
	packed.Expand(b.block.Values, b.packed)
	return &b.block
}

// Place returns which of the block's values the k-th given one is.
func (b *Blocks) Place(k int) int {
	if b.packed == nil {
		return k
	}
	return packed.Place(b.packed, k)
}

// Err returns why Next returned false, nil at the payload's end.
func (b *Blocks) Err() error { return b.err }

// Next reads the next table's block and reports whether there is one.
func (b *Blocks) Next() bool {
	b.Weight = 0
	for b.err == nil && len(b.rest) > 0 {
		mode := uint32(0)
		if len(b.rest) >= rowsBytes {
			mode = binary.LittleEndian.Uint32(b.rest[4:])
		}
		var src []byte
		switch mode {
		case modeWeight:
			return b.weight()
		case modePacked, modePacked + 1:
			if src, b.err = rowsOf(b.rest, &b.Rows, mode-modePacked); b.err == nil {
				b.packedValues(src)
			}
			return b.err == nil
		}
		if src, b.err = ParseRows(b.rest, &b.Rows); b.err != nil {
			return false
		}
		switch {
		case b.Table == basisTable:
			b.Basis, b.Lag, b.rest = perdure.Clock(b.First), perdure.Clock(b.Count), src
			if b.IDs != nil || b.Basis < 0 {
				b.err = fmt.Errorf("%w: an update computed from rows of MinClock %d", ErrPayload, b.Basis)
			}
			continue
		case b.Table == aloneTable:
			if b.Alone, b.rest = true, src; b.IDs != nil || b.First != 0 || b.Count != 0 {
				b.err = fmt.Errorf("%w: an update made alone, of rows", ErrPayload)
			}
			continue
		case b.Table != stateTable:
			b.values(src)
			return b.err == nil
		}
		if b.Count < 0 || b.Count > len(src) {
			b.err = fmt.Errorf("%w: saved state of %d bytes, %d there", ErrPayload, b.Count, len(src))
			return false
		}
		b.State = src[:b.Count:b.Count]
		b.rest = skipPad(src[b.Count:], b.size)
	}
	return false
}

// weight reads a block that is a weight, and reports whether it is one.
func (b *Blocks) weight() bool {
	le := binary.LittleEndian
	b.Rows = Rows{Table: perdure.TableID(le.Uint32(b.rest)), IDs: []perdure.RowID{}} // a list of none
	b.Given, b.Len, b.packed = nil, 0, nil
	b.Weight = math.Float64frombits(le.Uint64(b.rest[16:]))
	if err := perdure.ValidateWeight(b.Weight); err != nil || le.Uint64(b.rest[8:]) != 0 {
		b.err = fmt.Errorf("%w: an update of weight %v, with %d rows", ErrPayload, b.Weight, le.Uint64(b.rest[8:]))
	}
	b.rest = b.rest[rowsBytes:]
	return b.err == nil
}

// values reads a block's values.
func (b *Blocks) values(src []byte) {
	if len(src) < 8 {
		b.err = fmt.Errorf("%w: block without values", ErrPayload)
		return
	}
	n := binary.LittleEndian.Uint64(src)
	src = src[8:]
	if n > uint64(len(src)/4) {
		b.err = fmt.Errorf("%w: %d values announced, %d bytes there", ErrPayload, n, len(src))
		return
	}
	b.Given, b.Len, b.packed = Floats(src[:4*n]), int(n), nil
	b.rest = skipPad(src[4*n:], b.size)
}

// packedValues reads a block's values that are packed.
func (b *Blocks) packedValues(src []byte) {
	if b.Table >= aloneTable || len(src) < 8 {
		b.err = fmt.Errorf("%w: a block of packed values without any", ErrPayload)
		return
	}
	n := binary.LittleEndian.Uint64(src)
	if n > uint64(b.most) {
		b.err = fmt.Errorf("%w: more than %d values packed in one message", ErrPayload, mostPacked)
		return
	}
	b.most -= int(n)
	values, given, rest, err := packed.Cut(src[8:], int(n))
	if err != nil {
		b.err = fmt.Errorf("%w: %w", ErrPayload, err)
		return
	}
	b.Given, b.Len, b.packed = Floats(given), int(n), values
	b.rest = skipPad(rest, b.size)
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
//	16      8     microseconds: of a Get, that it waited for the shard's MinClock; of
//	              a Push, since the shard reached its MinClock
//	24      8·n   the applied vector: for each slot, its clocks contained
//	24+8n   4·m   the values
//
// With FlagPacked the values are packed, and take less: see package packed.
type Answer struct {
	State
	Values []float32 // nil where they are packed: see Whole
	packed []byte    // as they came
}

// Whole returns the values of an answer, which must be those of as many rows of dim values. Those that are packed are
// unpacked into room, which grows where it has too little.
func (a *Answer) Whole(rows, dim int, room *[]float32) ([]float32, error) {
	most := MaxPayload / 4 / dim
	if a.packed == nil || rows > most {
		if rows > most || len(a.Values) != rows*dim {
			return nil, fmt.Errorf("%w: %d values for %d rows of %d", ErrPayload, len(a.Values), rows, dim)
		}
		return a.Values, nil
	}
	n := rows * dim
	values, _, rest, err := packed.Cut(a.packed, n)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%d bytes follow their end", len(rest))
	}
	if err != nil {
		return nil, fmt.Errorf("%w: values for %d rows of %d: %w", ErrPayload, rows, dim, err)
	}
	if cap(*room) < n {
		*room = make([]float32, n)
	}
	all := (*room)[:n]
	packed.Expand(all, values)
	return all, nil
}

// Packed reports whether its values are packed.
func (a *Answer) Packed() bool { return a.packed != nil }

// State is what an answer's rows contain.
type State struct {
	Seq     uint64
	Waited  uint64 // microseconds
	Applied []perdure.Clock
}

// AppendState appends an Answer without its values, which follow.
func AppendState(dst []byte, s *State) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, s.Seq)
	dst = le.AppendUint64(dst, uint64(len(s.Applied)))
	dst = le.AppendUint64(dst, s.Waited)
	for _, c := range s.Applied {
		dst = le.AppendUint64(dst, uint64(c))
	}
	return dst
}

// stateBytes is the size of a State without its vector.
const stateBytes = 24

// AnswerHeaderBytes is the size of an Answer before its values.
func AnswerHeaderBytes(slots int) int { return stateBytes + 8*slots }

// parse reads a State, reusing its vector, and returns the rest.
func (s *State) parse(src []byte) (rest []byte, err error) {
	if len(src) < stateBytes {
		return nil, fmt.Errorf("%w: answer of %d bytes", ErrPayload, len(src))
	}
	le := binary.LittleEndian
	s.Seq, s.Waited = le.Uint64(src), le.Uint64(src[16:])
	n := le.Uint64(src[8:])
	src = src[stateBytes:]
	if n > uint64(len(src)/8) {
		return nil, fmt.Errorf("%w: applied vector of %d slots, %d bytes there", ErrPayload, n, len(src))
	}
	s.Applied = s.Applied[:0]
	for i := range n {
		s.Applied = append(s.Applied, perdure.Clock(le.Uint64(src[8*i:])))
	}
	return src[8*n:], nil
}

// ParseAnswer reads an Answer, reusing a.Applied. Its values alias the payload. How many they are to be only its
// reader knows: it asks for that many, by Whole.
func ParseAnswer(f *Frame, a *Answer) error {
	src, err := a.parse(f.Payload)
	if err != nil {
		return err
	}
	return a.take(src, f)
}

// take takes the values: what is left of the payload, or its body.
func (a *Answer) take(src []byte, f *Frame) error {
	a.Values, a.packed = nil, nil
	if body := f.Body; len(body) > 0 {
		if len(src) > 0 {
			return fmt.Errorf("%w: %d bytes between the head and the body of an answer", ErrPayload, len(src))
		}
		src = body
	}
	if len(src)%4 != 0 {
		return fmt.Errorf("%w: %d bytes of values", ErrPayload, len(src))
	}
	if f.Flags&FlagPacked != 0 {
		a.packed = src[:len(src):len(src)]
	} else {
		a.Values = Floats(src)
	}
	return nil
}

// Push is the payload of KindPush: rows of one table that have changed, none in a
// frame that only tells the shard's state. It is an Answer with Rows, padded to 8
// bytes by their encoding, between the state and the values.
type Push struct {
	Answer
	Rows
}

// AppendPushHead appends a Push without its values, which follow.
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
	return p.take(src, f)
}

// AppendIDs appends the payload of KindIDs: how many rows the shard stores, how
// many ids follow, and the ids.
func AppendIDs(dst []byte, stored int, ids []perdure.RowID) []byte {
	dst = binary.LittleEndian.AppendUint64(dst, uint64(stored))
	dst = binary.LittleEndian.AppendUint64(dst, uint64(len(ids)))
	for _, id := range ids {
		dst = binary.LittleEndian.AppendUint64(dst, uint64(id))
	}
	return dst
}

// ParseIDs reads what AppendIDs wrote; the ids alias src where the machine allows.
func ParseIDs(src []byte) (stored int, ids []perdure.RowID, err error) {
	le := binary.LittleEndian
	if len(src) < 16 || len(src)%8 != 0 || le.Uint64(src) > math.MaxInt64 ||
		le.Uint64(src[8:]) != uint64(len(src)/8-2) {
		return 0, nil, fmt.Errorf("%w: row ids in %d bytes", ErrPayload, len(src))
	}
	return int(le.Uint64(src)), rowIDs(src[16:]), nil
}

// AppendCounts appends c as four int64: staged, ticked, applied, seen.
func AppendCounts(dst []byte, c words.Counts) []byte {
	le := binary.LittleEndian
	dst = le.AppendUint64(dst, uint64(c.Staged))
	dst = le.AppendUint64(dst, uint64(c.Ticked))
	dst = le.AppendUint64(dst, uint64(c.Applied))
	return le.AppendUint64(dst, uint64(c.Seen))
}

// ParseCounts reads what AppendCounts wrote.
func ParseCounts(src []byte) (c words.Counts, err error) {
	if len(src) != 32 {
		return c, fmt.Errorf("%w: counts of %d bytes", ErrPayload, len(src))
	}
	le := binary.LittleEndian
	return words.Counts{
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

// FloatBytes returns the memory of v, and whether it holds v as it is on the wire:
// such bytes may be sent, and received into, in place of v.
func FloatBytes(v []float32) (b []byte, ok bool) {
	if !littleEndian || len(v) == 0 {
		return nil, false
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), 4*len(v)), true
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
