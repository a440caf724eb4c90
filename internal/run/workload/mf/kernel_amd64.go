package mf

import "golang.org/x/sys/cpu"

// vectors reports whether this machine has AVX2 and its operating system saves the registers. The vector kernels in
// kernel_amd64.s perform the operations of the plain loops in the same order and compute the same bits.
var vectors = cpu.X86.HasAVX2

func step(u, v []float32, target, rate, keep float32) (e float32) {
	if !vectors {
		return stepPlain(u, v, target, rate, keep)
	}
	return stepAVX2(&u[0], &v[0], len(u), target, rate, keep)
}

func dot(u, v []float32) float32 {
	if !vectors {
		return dotPlain(u, v)
	}
	return dotAVX2(&u[0], &v[0], len(u))
}

//go:noescape
func stepAVX2(u, v *float32, n int, target, rate, keep float32) (e float32)

//go:noescape
func dotAVX2(u, v *float32, n int) float32
