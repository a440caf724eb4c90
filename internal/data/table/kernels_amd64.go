package table

import "golang.org/x/sys/cpu"

// vectors reports whether this machine has AVX2 and its operating system saves the registers. The vector kernels are in
// kernels_amd64.s: they do the operations of the plain loops in the same order and give the same bits for every length
// and alignment. Only an operation on two NaN may return the other one.
var vectors = cpu.X86.HasAVX2

func add(w, g []float32) {
	if !vectors {
		addPlain(w, g)
		return
	}
	addAVX2(w, g[:len(w)])
}

func sgd(w, g []float32, rate float32) {
	if !vectors {
		sgdPlain(w, g, rate)
		return
	}
	sgdAVX2(w, g[:len(w)], rate)
}

func momentum(w, v, g []float32, mu, rate float32) {
	if !vectors {
		momentumPlain(w, v, g, mu, rate)
		return
	}
	momentumAVX2(w, v[:len(w)], g[:len(w)], mu, rate)
}

func nesterov(w, v, g []float32, mu, rate float32) {
	if !vectors {
		nesterovPlain(w, v, g, mu, rate)
		return
	}
	nesterovAVX2(w, v[:len(w)], g[:len(w)], mu, rate)
}

func adagrad(w, a, g []float32, rate, epsilon float32) {
	if !vectors {
		adagradPlain(w, a, g, rate, epsilon)
		return
	}
	adagradAVX2(w, a[:len(w)], g[:len(w)], rate, epsilon)
}

func adam(w, m, v, g []float32, k *adamFactors) {
	if !vectors {
		adamPlain(w, m, v, g, k)
		return
	}
	adamAVX2(w, m[:len(w)], v[:len(w)], g[:len(w)], k)
}

func ftrl(w, z, n, g []float32, k *ftrlFactors) {
	if !vectors {
		ftrlPlain(w, z, n, g, k)
		return
	}
	ftrlAVX2(w, z[:len(w)], n[:len(w)], g[:len(w)], k)
}

func clip(dst, g []float32, bound, scale float32) {
	if !vectors {
		clipPlain(dst, g, bound, scale)
		return
	}
	clipAVX2(dst, g[:len(dst)], bound, scale)
}

func squares(g []float32, bound float32) float64 {
	if !vectors {
		return squaresPlain(g, bound)
	}
	return squaresAVX2(g, bound)
}

func gap(a, b []float32) float64 {
	if !vectors {
		return gapPlain(a, b)
	}
	return gapAVX2(a, b[:len(a)])
}

func gaps(dst []float64, a, b []float32, width int) {
	if !vectors {
		gapsPlain(dst, a, b, width)
		return
	}
	gapsAVX2(dst, a[:len(dst)*width], b[:len(dst)*width], width)
}

// roots leaves the squares after the last multiple of four to the plain loop; apart does so after the last multiple of
// eight.
func roots(dst []uint32, squares []float64, by float64) (most uint32) {
	n := 0
	if vectors {
		n = len(squares) &^ 3
		most = rootsAVX2(dst[:n], squares[:n], by)
	}
	return max(most, rootsPlain(dst[n:], squares[n:], by))
}

func apart(dst []uint32, a, b []float32, by float32) (most uint32) {
	n := 0
	if vectors {
		n = len(a) &^ 7
		most = apartAVX2(dst[:n], a[:n], b[:n], by)
	}
	return max(most, apartPlain(dst[n:], a[n:], b[n:], by))
}

func atLeast(dst []uint64, keys []uint32, least uint32) {
	n := 0
	if vectors {
		n = len(keys) / 64
		atLeastAVX2(dst[:n], keys[:64*n], least)
	}
	atLeastPlain(dst[n:], keys[64*n:], least)
}

// nonFinite leaves the group of eight values that contains one, and the values after the last multiple of eight, to the
// plain loop.
func nonFinite(values []float32) int {
	finite := 0
	if vectors {
		finite = finiteAVX2(values)
	}
	if i := nonFinitePlain(values[finite:]); i >= 0 {
		return finite + i
	}
	return -1
}

//go:noescape
func addAVX2(w, g []float32)

//go:noescape
func sgdAVX2(w, g []float32, rate float32)

//go:noescape
func momentumAVX2(w, v, g []float32, mu, rate float32)

//go:noescape
func nesterovAVX2(w, v, g []float32, mu, rate float32)

//go:noescape
func adagradAVX2(w, a, g []float32, rate, epsilon float32)

//go:noescape
func adamAVX2(w, m, v, g []float32, k *adamFactors)

//go:noescape
func ftrlAVX2(w, z, n, g []float32, k *ftrlFactors)

//go:noescape
func clipAVX2(dst, g []float32, bound, scale float32)

//go:noescape
func squaresAVX2(g []float32, bound float32) float64

//go:noescape
func gapAVX2(a, b []float32) float64

//go:noescape
func gapsAVX2(dst []float64, a, b []float32, width int)

//go:noescape
func rootsAVX2(dst []uint32, squares []float64, by float64) (most uint32)

//go:noescape
func apartAVX2(dst []uint32, a, b []float32, by float32) (most uint32)

//go:noescape
func atLeastAVX2(dst []uint64, keys []uint32, least uint32)

// finiteAVX2 returns the number of values, a multiple of 8, that it has checked before the first NaN or ±Inf.
//
//go:noescape
func finiteAVX2(values []float32) int
