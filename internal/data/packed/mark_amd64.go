package packed

import "golang.org/x/sys/cpu"

// vectors reports whether this machine has AVX2 and its operating system saves the registers.
var vectors = cpu.X86.HasAVX2

// mark sets the bits of complete words, of 64 values each.
func mark(dst []uint64, values []float32) {
	if vectors {
		markAVX2(dst, values)
		return
	}
	for i := range dst {
		dst[i] = markPlain(values[i*wordBits : (i+1)*wordBits])
	}
}

//go:noescape
func markAVX2(dst []uint64, values []float32)
