// Package packed encodes float32 values without the zeros among them. Rows of counts, and what a clock does to
// them, are mostly zeros: packed they take a fraction of the bytes, and come out with the same bits.
//
// Packed, n values are:
//
//	0      8·w   w = ⌈n/64⌉ words: bit i%64 of word i/64 says that value i is given; bits from n on are 0
//	8·w    4·k   the k values that are given, in order: float32
//
// Left out is only what is +0, all of whose bits are 0: −0 and each NaN come out as they went in. A value that is
// given may be +0 as well.
//
// It is a codec only: no I/O, no state, safe for concurrent use.
package packed

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
)

// ErrPacked means that bytes are not that many values, packed.
var ErrPacked = errors.New("packed values are malformed")

const (
	// Least is how many values are packed at least: of fewer the heads of messages are most.
	Least = 1 << 10

	wordBits  = 64
	lookAt    = 8  // places that Pays looks at
	lookWidth = 16 // values at each: as many as a line of the processor's cache has
)

// Words returns how many words say which of n values are given.
func Words(n int) int { return n/wordBits + (n%wordBits+wordBits-1)/wordBits }

// Bits sets dst, of as many words as values need, to which of them are not +0.
func Bits(dst []uint64, values []float32) {
	n := len(values) / wordBits
	mark(dst[:n], values[:n*wordBits])
	if rest := values[n*wordBits:]; len(rest) > 0 {
		dst[n] = markPlain(rest)
	}
}

// markPlain returns which of at most 64 values are not +0.
func markPlain(values []float32) (word uint64) {
	for i, v := range values {
		b := math.Float32bits(v)
		word |= uint64((b|-b)>>31) << i
	}
	return word
}

// Pays reports whether values are worth packing, by a look at some of them from all over: it takes as long for any
// number of values, so that those that are not worth it are hardly held up.
func Pays(values []float32) bool {
	if len(values) < Least {
		return false
	}
	given := 0
	at, room := uint64(0), uint64(len(values)-lookWidth+1)
	for range lookAt {
		at += 0x9e3779b97f4a7c15 // apart whatever the rows' length is, and the same for all
		from := int((at >> 32) * room >> 32)
		for _, v := range values[from : from+lookWidth] {
			b := math.Float32bits(v)
			given += int((b | -b) >> 31)
		}
	}
	return given <= lookAt*lookWidth/4
}

// Append appends values, packed, to dst, and reports whether it has: not if they would take more than half of what
// they take as they are.
func Append(dst []byte, values []float32) (packed []byte, ok bool) {
	words := Words(len(values))
	start := len(dst)
	packed = grow(dst, 8*words)
	var marks [64]uint64 // of values that are near enough to be in the processor's cache when they are copied
	given := 0
	for at := 0; at < words; at += len(marks) {
		n := min(len(marks), words-at)
		Bits(marks[:n], values[at*wordBits:min((at+n)*wordBits, len(values))])
		for i, word := range marks[:n] {
			binary.LittleEndian.PutUint64(packed[start+8*(at+i):], word)
			given += bits.OnesCount64(word)
		}
		if 8*words+4*given > 2*len(values) {
			return dst, false
		}
		packed = copyGiven(packed, marks[:n], values[at*wordBits:])
	}
	return packed, true
}

// grow makes dst n bytes longer, which are to be written.
func grow(dst []byte, n int) []byte {
	if cap(dst)-len(dst) >= n {
		return dst[:len(dst)+n]
	}
	return append(dst, make([]byte, n)...)
}

// copyGiven appends those of the values that are marked.
func copyGiven(dst []byte, marks []uint64, values []float32) []byte {
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

// Cut returns the n values, packed, that src begins with, those of them that are given, and what follows them. It takes
// no memory, whatever src says.
func Cut(src []byte, n int) (values, given, rest []byte, err error) {
	words := Words(n)
	if n < 0 || len(src)/8 < words {
		return nil, nil, nil, fmt.Errorf("%w: %d values in %d bytes", ErrPacked, n, len(src))
	}
	k := 0
	for at := 0; at < 8*words; at += 8 {
		k += bits.OnesCount64(binary.LittleEndian.Uint64(src[at:]))
	}
	if over := n % wordBits; over > 0 && binary.LittleEndian.Uint64(src[8*words-8:])>>over != 0 {
		return nil, nil, nil, fmt.Errorf("%w: more than %d values are marked as given", ErrPacked, n)
	}
	end := 8*words + 4*k
	if len(src) < end {
		return nil, nil, nil, fmt.Errorf("%w: %d given values announced, %d bytes there", ErrPacked, k,
			len(src)-8*words)
	}
	return src[:end:end], src[8*words : end : end], src[end:], nil
}

// Place returns which of the values the k-th given one is, of those that Cut has returned.
func Place(values []byte, k int) int {
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

// Expand sets dst to the values that Cut has returned for as many as dst has.
func Expand(dst []float32, values []byte) {
	words := Words(len(dst))
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
