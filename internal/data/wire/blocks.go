package wire

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/packed"
)

// Block is one table's part of an update: rows and their deltas, in row-major order, Dim values each.
type Block struct {
	Rows
	Values []float32
}

// These are added to the mode of a block's rows if its values are packed or rounded: see package packed.
const (
	modePacked = 4
	modeBF16   = 8
	modeInt8   = 12
	mode2Bit   = 16
	modeRows   = 3 // the bits of the mode proper
)

// encodingOf returns the encoding of a block's values by its mode, or "" if they are not rounded.
func encodingOf(mode uint32) perdure.Encoding {
	switch mode &^ modeRows {
	case modeBF16:
		return perdure.EncodingBF16
	case modeInt8:
		return perdure.EncodingInt8
	case mode2Bit:
		return perdure.Encoding2Bit
	}
	return perdure.EncodingFloat32
}

// EncodeValues returns the values of rows rounded as e says, as they are sent.
func EncodeValues(e perdure.Encoding, rows int, values []float32) []byte {
	return packed.AppendEncoded(nil, e, len(values)/rows, values)
}

// AppendEncodedHead appends the head of a block of n rounded values, which must follow as the end of the payload.
func AppendEncodedHead(dst []byte, rows *Rows, e perdure.Encoding, n int) []byte {
	start := len(dst)
	dst = binary.LittleEndian.AppendUint64(AppendRows(dst, rows), uint64(n))
	for _, mode := range []uint32{modeBF16, modeInt8, mode2Bit} {
		if encodingOf(mode) == e {
			dst[start+4] |= byte(mode)
		}
	}
	return dst
}

// AppendEncodedBlock appends a block of n rounded values, which package packed has encoded.
func AppendEncodedBlock(dst []byte, rows *Rows, e perdure.Encoding, n int, encoded []byte) []byte {
	return pad8(append(AppendEncodedHead(dst, rows, e, n), encoded...))
}

// AppendPackedBlock appends the encoding of b with its values packed and returns the number of bytes saved compared
// with AppendBlock. If that is small, it appends nothing and returns 0.
func AppendPackedBlock(dst []byte, b *Block) (with []byte, saved int) {
	if !packed.WorthPacking(b.Values) {
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

// AppendBlock appends the encoding of b: its rows, the number of values as 8 bytes, and the values as float32.
func AppendBlock(dst []byte, b *Block) []byte {
	dst = AppendBlockHead(dst, b)
	dst = AppendFloats(dst, b.Values)
	return pad8(dst)
}

// AppendBlockHead appends the encoding of b without its values, which must follow as the end of the payload.
func AppendBlockHead(dst []byte, b *Block) []byte {
	dst = AppendRows(dst, &b.Rows)
	return binary.LittleEndian.AppendUint64(dst, uint64(len(b.Values)))
}

// AppendStateBlock appends the state that a slot saves with its update.
func AppendStateBlock(dst, state []byte) []byte {
	r := Rows{Table: stateBlock, Count: len(state)}
	dst = AppendRows(dst, &r)
	dst = append(dst, state...)
	return pad8(dst)
}

// AppendBasisBlock appends what an update was computed from: the smallest MinClock (≥ 0) of the rows, and how many of
// the slot's own earlier clocks they did not contain. If an update has this block, it is in the last part.
func AppendBasisBlock(dst []byte, basis, lag perdure.Clock) []byte {
	return AppendRows(dst, &Rows{Table: basisBlock, First: perdure.RowID(basis), Count: int(lag)})
}

// AppendOutageBlock appends a block that says that an update was computed from rows that were read while their shard
// was unavailable. If an update has this block, it is in the last part.
func AppendOutageBlock(dst []byte) []byte { return AppendRows(dst, &Rows{Table: outageBlock}) }

// modeWeight marks a block without rows that gives an update's weight for its table.
const modeWeight = 2

// AppendWeightBlock appends the weight of an update for a table that combines updates by weight. If an update has this
// block, it is in the last part.
func AppendWeightBlock(dst []byte, t perdure.TableID, weight float64) []byte {
	dst = AppendRows(dst, &Rows{Table: t, First: perdure.RowID(math.Float64bits(weight))})
	binary.LittleEndian.PutUint32(dst[len(dst)-rowsBytes+4:], modeWeight)
	return dst
}

// pad8 pads dst so that the next bytes are aligned to 8 from the payload's start.
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
// Afterwards b.Err reports whether the payload was valid. Ids, values and state alias the payload.
type Blocks struct {
	Rows                    // of the current block
	Sent      []float32     // its values; if packed, only the nonzero ones that are transmitted
	Len       int           // number of values, including omitted ones
	State     []byte        // the slot's state; nil if not seen so far
	Basis     perdure.Clock // MinClock of the oldest row that the update was computed from; NoBasis if not seen so far
	Lag       perdure.Clock // number of the slot's own clocks that the rows did not contain
	InOutage  bool          // the rows were read while the shard was unavailable
	Weight    float64       // of a block without rows: the update's weight for its table; 0: the block has rows
	block     Block         // returned by Unpack
	packed    []byte        // the current block's packed values; nil if not packed
	encoded   []byte        // its rounded values; nil if not rounded
	encoding  perdure.Encoding
	maxPacked int // max number of packed and rounded values in the rest of the payload
	rest      []byte
	size      int
	err       error
}

// maxPackedValues is the max number of packed and rounded values in one payload, including omitted ones: as float32
// they would also fit in one. It keeps a few received bytes from expanding to much memory.
const maxPackedValues = MaxPayload / 4

// ReadBlocks returns a reader of a payload.
func ReadBlocks(payload []byte) Blocks {
	return Blocks{rest: payload, size: len(payload), maxPacked: maxPackedValues, Basis: NoBasis}
}

// Unpack returns the current block with all its values. It unpacks and decodes values into room, growing it if
// necessary; the next call reuses it. If room is nil, it allocates.
func (b *Blocks) Unpack(room *[]float32) *Block {
	b.block = Block{b.Rows, b.Sent}
	if b.packed == nil && b.encoded == nil {
		return &b.block
	}
	if room == nil {
		room = new([]float32)
	}
	if cap(*room) < b.Len {
		*room = make([]float32, b.Len)
	}
	b.block.Values = (*room)[:b.Len]
	if b.encoded != nil {
		packed.Decode(b.block.Values, b.encoding, b.Len/b.Count, b.encoded)
	} else {
		packed.Expand(b.block.Values, b.packed)
	}
	return &b.block
}

// Index returns the index in the block of the k-th transmitted value.
func (b *Blocks) Index(k int) int {
	if b.packed == nil {
		return k
	}
	return packed.Index(b.packed, k)
}

// Err returns the reason why Next returned false, or nil at the payload's end.
func (b *Blocks) Err() error { return b.err }

// Next reads the next table's block and reports whether there is one.
func (b *Blocks) Next() bool {
	b.Weight, b.packed, b.encoded = 0, nil, nil
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
			if src, b.err = parseRowList(b.rest, &b.Rows, mode-modePacked); b.err == nil {
				b.packedValues(src)
			}
			return b.err == nil
		case modeBF16, modeBF16 + 1, modeInt8, modeInt8 + 1, mode2Bit, mode2Bit + 1:
			if src, b.err = parseRowList(b.rest, &b.Rows, mode&modeRows); b.err == nil {
				b.encodedValues(src, encodingOf(mode))
			}
			return b.err == nil
		}
		if src, b.err = ParseRows(b.rest, &b.Rows); b.err != nil {
			return false
		}
		switch {
		case b.Table == basisBlock:
			b.Basis, b.Lag, b.rest = perdure.Clock(b.First), perdure.Clock(b.Count), src
			if b.IDs != nil || b.Basis < 0 {
				b.err = fmt.Errorf("%w: invalid MinClock %d as the basis of an update", ErrPayload, b.Basis)
			}
			continue
		case b.Table == outageBlock:
			if b.InOutage, b.rest = true, src; b.IDs != nil || b.First != 0 || b.Count != 0 {
				b.err = fmt.Errorf("%w: the block that marks an unavailable shard contains rows", ErrPayload)
			}
			continue
		case b.Table != stateBlock:
			b.values(src)
			return b.err == nil
		}
		if b.Count < 0 || b.Count > len(src) {
			b.err = fmt.Errorf("%w: slot state of %d bytes announced, but only %d present", ErrPayload, b.Count,
				len(src))
			return false
		}
		b.State = src[:b.Count:b.Count]
		b.rest = skipPad(src[b.Count:], b.size)
	}
	return false
}

// weight reads a block with a weight and reports whether it is valid.
func (b *Blocks) weight() bool {
	le := binary.LittleEndian
	b.Rows = Rows{Table: perdure.TableID(le.Uint32(b.rest)), IDs: []perdure.RowID{}} // an empty list
	b.Sent, b.Len = nil, 0
	b.Weight = math.Float64frombits(le.Uint64(b.rest[16:]))
	if err := perdure.ValidateWeight(b.Weight); err != nil || le.Uint64(b.rest[8:]) != 0 {
		b.err = fmt.Errorf("%w: invalid weight block: weight %v, with %d rows", ErrPayload, b.Weight,
			le.Uint64(b.rest[8:]))
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
		b.err = fmt.Errorf("%w: %d values announced, but only %d bytes present", ErrPayload, n, len(src))
		return
	}
	b.Sent, b.Len = Floats(src[:4*n]), int(n)
	b.rest = skipPad(src[4*n:], b.size)
}

// numPacked reads the number of a block's packed or rounded values.
func (b *Blocks) numPacked(src []byte) (n int, ok bool) {
	if b.Table >= outageBlock || len(src) < 8 {
		b.err = fmt.Errorf("%w: a block of packed values is empty", ErrPayload)
		return 0, false
	}
	all := binary.LittleEndian.Uint64(src)
	if all > uint64(b.maxPacked) {
		b.err = fmt.Errorf("%w: more than %d packed values in one message", ErrPayload, maxPackedValues)
		return 0, false
	}
	b.maxPacked -= int(all)
	return int(all), true
}

// encodedValues reads a block's rounded values.
func (b *Blocks) encodedValues(src []byte, e perdure.Encoding) {
	n, ok := b.numPacked(src)
	if !ok {
		return
	}
	if b.Count < 1 || n < b.Count || n%b.Count != 0 {
		b.err = fmt.Errorf("%w: %d rounded values do not fit %d rows", ErrPayload, n, b.Count)
		return
	}
	encoded, rest, err := packed.SplitEncoded(src[8:], e, b.Count, n/b.Count)
	if err != nil {
		b.err = fmt.Errorf("%w: %w", ErrPayload, err)
		return
	}
	b.Sent, b.Len, b.encoded, b.encoding = nil, n, encoded, e
	b.rest = skipPad(rest, b.size)
}

// packedValues reads a block's packed values.
func (b *Blocks) packedValues(src []byte) {
	n, ok := b.numPacked(src)
	if !ok {
		return
	}
	values, given, rest, err := packed.Split(src[8:], n)
	if err != nil {
		b.err = fmt.Errorf("%w: %w", ErrPayload, err)
		return
	}
	b.Sent, b.Len, b.packed = Floats(given), n, values
	b.rest = skipPad(rest, b.size)
}

// skipPad skips the padding up to the next multiple of 8 from the start of a payload of the given size, whose unread
// end is rest.
func skipPad(rest []byte, size int) []byte {
	at := size - len(rest)
	return rest[min(len(rest), (8-at%8)%8):]
}
