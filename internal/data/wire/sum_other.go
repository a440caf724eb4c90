//go:build !amd64

package wire

import "hash/crc32"

const canFold = false

// add is crc32.Update for Castagnoli's polynomial.
func add(sum uint32, b []byte) uint32 { return crc32.Update(sum, castagnoli, b) }
