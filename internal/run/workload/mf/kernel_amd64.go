package mf

import "golang.org/x/sys/cpu"

// vectors says that this machine has AVX2 and that its operating system saves
// the registers. The vector kernels are in kernel_amd64.s: the operations of the
// plain loops, in their order, and their bits.
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
