package wire

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// AddSum returns the CRC-32C of the bytes with checksum sum, followed by b.
func AddSum(sum uint32, b []byte) uint32 { return addCold(sum, b) }

// warmBytes is the number of bytes loaded into the cache before they are summed.
const warmBytes = 4 << 10

// addCold is add for bytes that may not be in the cache, such as those about to be sent. The standard library sums
// three parts of its input concurrently, which defeats the processor's prefetching: without warm it took three times as
// long.
func addCold(sum uint32, b []byte) uint32 {
	for !canFold && len(b) > warmBytes {
		warm(b[:warmBytes])
		sum = add(sum, b[:warmBytes])
		b = b[warmBytes:]
	}
	return add(sum, b)
}

// warm reads a byte of every cache line.
//
//go:noinline
func warm(b []byte) (x byte) {
	for len(b) >= 256 {
		x += b[0] + b[64] + b[128] + b[192]
		b = b[256:]
	}
	return x
}
