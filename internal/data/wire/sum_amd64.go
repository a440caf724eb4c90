package wire

import (
	"hash/crc32"

	"golang.org/x/sys/cpu"
)

const (
	// foldBytes is what one step of fold takes.
	foldBytes = 256
	// leastFolded is the least for which folding is worth its beginning and end.
	leastFolded = 4 * foldBytes
)

var canFold = cpu.X86.HasSSE42 && cpu.X86.HasAVX512F && cpu.X86.HasAVX512VPCLMULQDQ

// fold is add without the inversions at begin and end, for a b that is a multiple
// of foldBytes long and not empty.
//
//go:noescape
func fold(sum uint32, b []byte) uint32

// add is crc32.Update for Castagnoli's polynomial. The standard library multiplies
// 8 bytes in a step, this 256: from the cache, it is twice as fast.
func add(sum uint32, b []byte) uint32 {
	if canFold && len(b) >= leastFolded {
		n := len(b) &^ (foldBytes - 1)
		sum, b = ^fold(^sum, b[:n]), b[n:]
	}
	return crc32.Update(sum, castagnoli, b)
}
