package packed

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/perdure/perdure"
)

// Rows that a table's encoding rounds. By size in bytes, the encoding of n rows of d values is:
//
//	bf16  2·n·d    the upper halves of the float32 values
//	int8  4·n      s: the rows' scales: float32
//	      n·d      k: a value is k·s
//	2bit  20·n     of each row: c, the number of coded values, and four levels: float32
//	      n·⌈d/4⌉  of each row: by value the number of its level, two bits each from the lowest on
//
// Of 2bit, values from c on are +0. If the highest bit of c is set, the row's part is the float32 values themselves,
// which then fit.
//
// Rounding is a projection: encoding a decoded row returns the same bytes or, of 2bit, bytes that decode to the same
// values. A program that rounds its updates therefore knows exactly what the servers receive. All results are finite
// if the values are, and do not depend on the processor.

const (
	levels     = 4
	headBytes  = 4 + 4*levels // of a row of 2bit
	rawRow     = 1 << 31      // of c: the row is not rounded
	maxInt8    = 127
	scaleBits  = 8          // low bits of a scale that are 0, so that each multiple of it up to 127 is exact
	minScaled  = 0x1p-96    // rows of smaller values are rounded to 0, since their scale would be subnormal
	roundMagic = 3 << 22    // float32 values above it in magnitude, up to twice it, are whole numbers
	lloydMax   = 0.98159883 // the outer threshold of the best four levels for normally distributed values
)

// EncodedBytes returns the size of encoded rows of dim values.
func EncodedBytes(e perdure.Encoding, rows, dim int) int {
	switch e {
	case perdure.EncodingBF16:
		return 2 * rows * dim
	case perdure.EncodingInt8:
		return (4 + dim) * rows
	case perdure.Encoding2Bit:
		return (headBytes + (dim+3)/4) * rows
	}
	return 4 * rows * dim
}

// AppendEncoded appends rows of dim finite values to dst, rounded as e says, which must not be float32.
func AppendEncoded(dst []byte, e perdure.Encoding, dim int, values []float32) []byte {
	rows := len(values) / dim
	start := len(dst)
	dst = grow(dst, EncodedBytes(e, rows, dim))
	to := dst[start:]
	switch e {
	case perdure.EncodingBF16:
		for i, v := range values {
			binary.LittleEndian.PutUint16(to[2*i:], toBF16(v))
		}
	case perdure.EncodingInt8:
		scales, codes := to[:4*rows], to[4*rows:]
		for r := range rows {
			s := encodeInt8(codes[r*dim:(r+1)*dim], values[r*dim:(r+1)*dim])
			binary.LittleEndian.PutUint32(scales[4*r:], math.Float32bits(s))
		}
	case perdure.Encoding2Bit:
		heads, codes, size := to[:headBytes*rows], to[headBytes*rows:], (dim+3)/4
		for r := range rows {
			encode2Bit(heads[headBytes*r:][:headBytes], codes[r*size:(r+1)*size], values[r*dim:(r+1)*dim])
		}
	}
	return dst
}

// SplitEncoded splits src into encoded rows of dim values and the rest. It returns an error if they are not valid.
func SplitEncoded(src []byte, e perdure.Encoding, rows, dim int) (encoded, rest []byte, err error) {
	if rows < 0 || dim < 1 || rows > len(src) || dim > perdure.MaxDim || len(src) < EncodedBytes(e, rows, dim) {
		return nil, nil, fmt.Errorf("%w: %d rows of %d values in %d bytes", ErrPacked, rows, dim, len(src))
	}
	size := EncodedBytes(e, rows, dim)
	encoded, rest = src[:size:size], src[size:]
	le := binary.LittleEndian
	switch e {
	case perdure.EncodingBF16:
		for at := 0; at < size; at += 2 {
			if le.Uint16(encoded[at:])&0x7f80 == 0x7f80 {
				return nil, nil, fmt.Errorf("%w: value %d is not finite", ErrPacked, at/2)
			}
		}
	case perdure.EncodingInt8:
		for r := range rows {
			if s := math.Float32frombits(le.Uint32(encoded[4*r:])); !(s >= 0 && s <= math.MaxFloat32/(maxInt8+1)) {
				return nil, nil, fmt.Errorf("%w: row %d has scale %v", ErrPacked, r, s)
			}
		}
	case perdure.Encoding2Bit:
		codes, size := encoded[headBytes*rows:], (dim+3)/4
		for r := range rows {
			if err := check2Bit(encoded[headBytes*r:][:headBytes], codes[r*size:(r+1)*size], dim); err != nil {
				return nil, nil, fmt.Errorf("%w: row %d: %w", ErrPacked, r, err)
			}
		}
	default:
		return nil, nil, fmt.Errorf("%w: unknown encoding %q", ErrPacked, e)
	}
	return encoded, rest, nil
}

// Decode decodes rows that SplitEncoded or AppendEncoded has returned into dst, which must be as many.
func Decode(dst []float32, e perdure.Encoding, dim int, encoded []byte) {
	rows := len(dst) / dim
	switch e {
	case perdure.EncodingBF16:
		for i := range dst {
			dst[i] = math.Float32frombits(uint32(binary.LittleEndian.Uint16(encoded[2*i:])) << 16)
		}
	case perdure.EncodingInt8:
		codes := encoded[4*rows:]
		for r := range rows {
			s := math.Float32frombits(binary.LittleEndian.Uint32(encoded[4*r:]))
			row, of := dst[r*dim:(r+1)*dim], codes[r*dim:(r+1)*dim]
			for i, k := range of {
				row[i] = float32(int8(k)) * s
			}
		}
	case perdure.Encoding2Bit:
		codes, size := encoded[headBytes*rows:], (dim+3)/4
		for r := range rows {
			decode2Bit(dst[r*dim:(r+1)*dim], encoded[headBytes*r:][:headBytes], codes[r*size:(r+1)*size])
		}
	}
}

// Round replaces rows of dim finite values by those that encoding and decoding returns. It needs room for a row's
// encoding, which it allocates.
func Round(values []float32, e perdure.Encoding, dim int) {
	if e == perdure.EncodingFloat32 {
		return
	}
	var room []byte
	for ; len(values) >= dim; values = values[dim:] {
		room = AppendEncoded(room[:0], e, dim, values[:dim])
		Decode(values[:dim], e, dim, room)
	}
}

// toBF16 rounds to the nearest value of bf16, of two equally near ones to the even one, and never to infinity.
func toBF16(v float32) uint16 {
	b := math.Float32bits(v)
	h := uint16((b + 0x7fff + b>>16&1) >> 16)
	if h&0x7fff >= 0x7f80 {
		return h&0x8000 | 0x7f7f
	}
	return h
}

// encodeInt8 writes the codes of a row, and returns its scale: the largest value becomes ±127.
func encodeInt8(codes []byte, row []float32) (scale float32) {
	most := uint32(0)
	for _, v := range row {
		most = max(most, math.Float32bits(v)&^(1<<31))
	}
	if largest := math.Float32frombits(most); largest >= minScaled {
		b := math.Float32bits(largest / maxInt8)
		if b&(1<<scaleBits-1) != 0 {
			b = (b | (1<<scaleBits - 1)) + 1
		}
		// The last float32 values have no scale above them.
		const top = (math.MaxFloat32 / (maxInt8 + 1))
		scale = min(math.Float32frombits(b), math.Float32frombits(math.Float32bits(top)&^(1<<scaleBits-1)))
	}
	if scale == 0 {
		clear(codes)
		return 0
	}
	by := 1 / scale
	_ = codes[len(row)-1]
	for i, v := range row {
		// The conversion forbids a fused multiplication and addition, whose result would depend on the processor.
		k := int32(math.Float32bits(float32(v*by)+roundMagic)) - int32(math.Float32bits(roundMagic))
		codes[i] = byte(int8(max(-maxInt8, min(maxInt8, k))))
	}
	return scale
}

// encode2Bit writes the levels and codes of a row.
func encode2Bit(head, codes []byte, row []float32) {
	n := len(row)
	for n > 0 && math.Float32bits(row[n-1]) == 0 {
		n--
	}
	clear(head)
	clear(codes)
	le := binary.LittleEndian
	if row = row[:n]; 4*n <= len(codes) {
		le.PutUint32(head, uint32(n)|rawRow)
		for i, v := range row {
			le.PutUint32(codes[4*i:], math.Float32bits(v))
		}
		return
	}
	le.PutUint32(head, uint32(n))
	of, few := fewLevels(row)
	if few {
		for i, v := range row {
			codes[i/4] |= byte(indexOf(&of, v) << (i % 4 * 2))
		}
	} else {
		of = bestLevels(codes, row)
	}
	for k, v := range of {
		le.PutUint32(head[4+4*k:], math.Float32bits(v))
	}
}

// indexOf returns the index of a value among four, or 4.
func indexOf(of *[levels]float32, v float32) (k int) {
	for k < levels && math.Float32bits(of[k]) != math.Float32bits(v) {
		k++
	}
	return k
}

// fewLevels returns the values of a row as its levels, if there are at most four.
func fewLevels(row []float32) (of [levels]float32, few bool) {
	used := 0
	for _, v := range row {
		switch k := indexOf(&of, v); {
		case k < used:
		case used == levels:
			return of, false
		default:
			of[used] = v
			used++
		}
	}
	return of, true
}

// bestLevels writes the codes of a row, and returns its levels. The thresholds are the row's mean, and about a standard
// deviation from it; the levels are the means of the values between them.
func bestLevels(codes []byte, row []float32) (of [levels]float32) {
	n := float64(len(row))
	mean := sum(row, func(v float64) float64 { return v }) / n
	far := float64(lloydMax * math.Sqrt(sum(row, func(v float64) float64 { return (v - mean) * (v - mean) })/n))
	clamp := func(edge float64) float32 { return float32(max(-math.MaxFloat32, min(math.MaxFloat32, edge))) }
	low, middle, high := clamp(mean-far), clamp(mean), clamp(mean+far)
	var sums, counts [levels]float64
	for i, v := range row {
		// The sign of the difference tells whether v lies below a threshold, without a branch that would often be
		// predicted wrongly.
		k := 3 - (math.Float32bits(v-low)>>31 + math.Float32bits(v-middle)>>31 + math.Float32bits(v-high)>>31)
		codes[i/4] |= byte(k << (i % 4 * 2))
		sums[k&3] += float64(v)
		counts[k&3]++
	}
	for k := range of {
		if counts[k] > 0 {
			of[k] = float32(sums[k] / counts[k])
		}
	}
	return of
}

// sum adds up f of the values in four sums, so that additions need not wait for each other.
func sum(row []float32, f func(float64) float64) float64 {
	var of [4]float64
	for ; len(row) >= 4; row = row[4:] {
		for i := range of {
			of[i] += float64(f(float64(row[i])))
		}
	}
	for _, v := range row {
		of[0] += float64(f(float64(v)))
	}
	return of[0] + of[1] + (of[2] + of[3])
}

// check2Bit returns an error for a row that encode2Bit cannot have written.
func check2Bit(head, codes []byte, dim int) error {
	le := binary.LittleEndian
	n := le.Uint32(head)
	values := head[4:]
	if n >= rawRow {
		if n -= rawRow; int64(n)*4 > int64(len(codes)) {
			return fmt.Errorf("%d values in %d bytes", n, len(codes))
		}
		values = codes[:4*n]
	}
	if int64(n) > int64(dim) {
		return fmt.Errorf("%d values are coded, of %d", n, dim)
	}
	for at := 0; at < len(values); at += 4 {
		if le.Uint32(values[at:])&0x7f800000 == 0x7f800000 {
			return fmt.Errorf("level %d is not finite", at/4)
		}
	}
	return nil
}

func decode2Bit(row []float32, head, codes []byte) {
	le := binary.LittleEndian
	n := le.Uint32(head)
	if n >= rawRow {
		n -= rawRow
		for i := range row[:n] {
			row[i] = math.Float32frombits(le.Uint32(codes[4*i:]))
		}
	} else {
		var of [levels]float32
		for k := range of {
			of[k] = math.Float32frombits(le.Uint32(head[4+4*k:]))
		}
		for i := range row[:n] {
			row[i] = of[codes[i/4]>>(i%4*2)&3]
		}
	}
	clear(row[n:])
}
