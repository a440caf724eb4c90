// Package packed encodes float32 values without the zeros among them. Rows of counts, and their changes in one clock,
// are mostly zeros: packed they take a fraction of the bytes, and unpacking restores the same bits.
//
// The encoding of n values is:
//
//	0      8·w   w = ⌈n/64⌉ words: bit i%64 of word i/64 says that value i is given; bits from n on are 0
//	8·w    4·k   the k given values, in order: float32
//
// Only +0, whose bits are all 0, is omitted: −0 and each NaN keep their bits. A given value may also be +0.
//
// The package is only a codec: it does no I/O, has no state and is safe for concurrent use.
package packed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// ErrPacked means that the bytes are not a valid encoding of as many values as the caller expects.
var ErrPacked = errors.New("packed values are malformed")

const (
	// MinValues is the min number of values to pack: with fewer, the headers of messages dominate.
	MinValues = 1 << 10

	wordBits        = 64
	samplePositions = 8  // positions that WorthPacking samples
	sampleWidth     = 16 // values per sample: one cache line
)

// MaskWords returns the number of words of the bit mask for n values.
func MaskWords(n int) int { return n/wordBits + (n%wordBits+wordBits-1)/wordBits }

// SetMask sets dst to the bit mask of values: a bit is 1 if its value is not +0. dst must have MaskWords(len(values))
// words.
func SetMask(dst []uint64, values []float32) {
	n := len(values) / wordBits
	mark(dst[:n], values[:n*wordBits])
	if rest := values[n*wordBits:]; len(rest) > 0 {
		dst[n] = markPlain(rest)
	}
}

// markPlain returns the mask of those of at most 64 values that are not +0.
func markPlain(values []float32) (word uint64) {
	for i, v := range values {
		b := math.Float32bits(v)
		word |= uint64((b|-b)>>31) << i
	}
	return word
}

// WorthPacking reports whether values are worth packing, by sampling them at several positions. Its cost does not
// depend on the number of values, so that it hardly delays values that are not worth packing.
func WorthPacking(values []float32) bool {
	if len(values) < MinValues {
		return false
	}
	given := 0
	at, room := uint64(0), uint64(len(values)-sampleWidth+1)
	for range samplePositions {
		at += 0x9e3779b97f4a7c15 // spread for any row length, and the same for all
		from := int((at >> 32) * room >> 32)
		for _, v := range values[from : from+sampleWidth] {
			b := math.Float32bits(v)
			given += int((b | -b) >> 31)
		}
	}
	return given <= samplePositions*sampleWidth/4
}

// Append appends the packed values to dst. It reports false and appends nothing if they would take more than half of
// their unpacked size.
func Append(dst []byte, values []float32) (packed []byte, ok bool) {
	words := MaskWords(len(values))
	start := len(dst)
	packed = grow(dst, 8*words)
	var marks [64]uint64 // few enough that their values are still in the processor's cache when they are copied
	given := 0
	for at := 0; at < words; at += len(marks) {
		n := min(len(marks), words-at)
		SetMask(marks[:n], values[at*wordBits:min((at+n)*wordBits, len(values))])
		for i, word := range marks[:n] {
			binary.LittleEndian.PutUint64(packed[start+8*(at+i):], word)
			given += bits.OnesCount64(word)
		}
		if 8*words+4*given > 2*len(values) {
			return dst, false
		}
		packed = appendMarked(packed, marks[:n], values[at*wordBits:])
	}
	return packed, true
}

// grow extends dst by n bytes, which the caller must write.
func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst[:len(dst)+n]
	}
	return append(dst, make([]byte, n)...)
}

// appendMarked appends to dst those values whose bits are set in marks.
func appendMarked(dst []byte, marks []uint64, values []float32) []byte {
	given := 0
	for _, word := range marks {
		given += bits.OnesCount64(word)
	}
	end := len(dst)
	dst = grow(dst, 4*given)
	to := dst[end:]
	for i, word := range marks {
		of := values[i*wordBits:]
		for ; word != 0; word &= word - 1 {
			binary.LittleEndian.PutUint32(to, math.Float32bits(of[bits.TrailingZeros64(word)]))
			to = to[4:]
		}
	}
	return dst
}

// Split splits src into the encoding of n values, the given ones among them, and the rest. It does not allocate,
// whatever src contains.
func Split(src []byte, n int) (values, given, rest []byte, err error) {
	words := MaskWords(n)
	if n < 0 || len(src)/8 < words {
		return nil, nil, nil, fmt.Errorf("%w: %d values in %d bytes", ErrPacked, n, len(src))
	}
	k := 0
	for at := 0; at < 8*words; at += 8 {
		k += bits.OnesCount64(binary.LittleEndian.Uint64(src[at:]))
	}
	if over := n % wordBits; over > 0 && binary.LittleEndian.Uint64(src[8*words-8:])>>over != 0 {
		return nil, nil, nil, fmt.Errorf("%w: more than %d values are marked as present", ErrPacked, n)
	}
	end := 8*words + 4*k
	if len(src) < end {
		return nil, nil, nil, fmt.Errorf("%w: %d values announced, but only %d bytes present", ErrPacked, k,
			len(src)-8*words)
	}
	return src[:end:end], src[8*words : end : end], src[end:], nil
}

// Index returns the index of the k-th given value in the values that Split has returned.
func Index(values []byte, k int) int {
	for at := 0; ; at += 8 {
		word := binary.LittleEndian.Uint64(values[at:])
		n := bits.OnesCount64(word)
		if k < n {
			for ; k > 0; k-- {
				word &= word - 1
			}
			return at*8 + bits.TrailingZeros64(word)
		}
		k -= n
	}
}

// Expand unpacks values that Split has returned into dst, whose length must be their number.
func Expand(dst []float32, values []byte) {
	words := MaskWords(len(dst))
	given := values[8*words:]
	for i := range words {
		word := binary.LittleEndian.Uint64(values[8*i:])
		to := dst[i*wordBits : min((i+1)*wordBits, len(dst))]
		clear(to)
		for ; word != 0; word &= word - 1 {
			to[bits.TrailingZeros64(word)] = math.Float32frombits(binary.LittleEndian.Uint32(given))
			given = given[4:]
		}
	}
}
