//go:build !amd64

package packed

// mark sets the bits of complete words, of 64 values each.
func mark(dst []uint64, values []float32) {
	for i := range dst {
		dst[i] = markPlain(values[i*wordBits : (i+1)*wordBits])
	}
}
