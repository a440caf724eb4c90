package table

import "math"

// The loops of the rules in plain Go. They define the bits: each operation is rounded to float32 on its own, in the
// order written here. The conversions keep the compiler from fusing a multiplication and an addition, which would give
// different bits on machines with such an instruction. Vector kernels of an architecture do the same operations on
// eight values at a time; tests compare them with these loops.
//
// All vectors of a call have the same length; w are the rows, g is the update as the rule sees it.

// addPlain: w += g.
func addPlain(w, g []float32) {
	g = g[:len(w)]
	for i := range w {
		w[i] += g[i]
	}
}

// sgdPlain: w -= rate·g.
func sgdPlain(w, g []float32, rate float32) {
	g = g[:len(w)]
	for i := range w {
		w[i] -= float32(rate * g[i])
	}
}

// momentumPlain: v = mu·v + g; w -= rate·v.
func momentumPlain(w, v, g []float32, mu, rate float32) {
	v, g = v[:len(w)], g[:len(w)]
	for i := range w {
		v[i] = float32(mu*v[i]) + g[i]
		w[i] -= float32(rate * v[i])
	}
}

// nesterovPlain: v = mu·v + g; w -= rate·(g + mu·v).
func nesterovPlain(w, v, g []float32, mu, rate float32) {
	v, g = v[:len(w)], g[:len(w)]
	for i := range w {
		v[i] = float32(mu*v[i]) + g[i]
		ahead := g[i] + float32(mu*v[i])
		w[i] -= float32(rate * ahead)
	}
}

// adagradPlain: a += g·g; w -= (rate·g) / (√a + epsilon).
func adagradPlain(w, a, g []float32, rate, epsilon float32) {
	a, g = a[:len(w)], g[:len(w)]
	for i := range w {
		a[i] += float32(g[i] * g[i])
		w[i] -= float32(rate*g[i]) / (root(a[i]) + epsilon)
	}
}

// adamFactors are the constants of one call of adam.
type adamFactors struct {
	beta1, rest1 float32 // β1, 1-β1
	beta2, rest2 float32 // β2, 1-β2
	step         float32 // η / (1-β1^t)
	scale        float32 // 1 / √(1-β2^t)
	epsilon      float32
}

// adamPlain: m = beta1·m + rest1·g; v = beta2·v + rest2·(g·g);
// w -= (step·m) / (scale·√v + epsilon).
func adamPlain(w, m, v, g []float32, k *adamFactors) {
	m, v, g = m[:len(w)], v[:len(w)], g[:len(w)]
	f := *k
	for i := range w {
		m[i] = float32(f.beta1*m[i]) + float32(f.rest1*g[i])
		v[i] = float32(f.beta2*v[i]) + float32(f.rest2*float32(g[i]*g[i]))
		w[i] -= float32(f.step*m[i]) / (float32(f.scale*root(v[i])) + f.epsilon)
	}
}

// ftrlFactors are the constants of one call of ftrl.
type ftrlFactors struct {
	inverse float32 // 1/α
	beta    float32
	l1, l2  float32
}

// ftrlPlain: n' = n + g·g; s = (√n' - √n)·inverse; z += g - s·w; n = n';
// w = 0 if |z| ≤ l1, else (sign(z)·l1 - z) / ((beta + √n)·inverse + l2).
func ftrlPlain(w, z, n, g []float32, k *ftrlFactors) {
	z, n, g = z[:len(w)], n[:len(w)], g[:len(w)]
	f := *k
	for i := range w {
		before := root(n[i])
		n[i] += float32(g[i] * g[i])
		after := root(n[i])
		s := float32((after - before) * f.inverse)
		z[i] += g[i] - float32(s*w[i])
		l1 := math.Float32frombits(math.Float32bits(f.l1) ^ math.Float32bits(z[i])&(1<<31)) // with z's sign
		v := (l1 - z[i]) / (float32((f.beta+after)*f.inverse) + f.l2)
		if float32(math.Abs(float64(z[i]))) <= f.l1 {
			v = 0
		}
		w[i] = v
	}
}

// clipPlain: dst = scale·g, with each g first bounded to [-bound, bound]. NaN stays NaN. The bound +Inf and the scale 1
// have no effect.
func clipPlain(dst, g []float32, bound, scale float32) {
	g = g[:len(dst)]
	for i := range dst {
		dst[i] = float32(scale * bounded(g[i], bound))
	}
}

func bounded(v, bound float32) float32 {
	if bound < v {
		v = bound
	}
	if -bound > v {
		v = -bound
	}
	return v
}

// squaresPlain returns the sum of the squares of g, with each value bounded as in clip. Value i goes to partial sum i
// mod 16; then the upper half of the sums is added to the lower half until one is left. The squares are exact in
// float64: they do not overflow, and a fused multiplication would give the same bits.
func squaresPlain(g []float32, bound float32) float64 {
	var sums [16]float64
	for i, v := range g {
		v := float64(bounded(v, bound))
		sums[i%len(sums)] += float64(v * v)
	}
	return fold(&sums)
}

// gapPlain returns the sum of the squares of a - b, with each difference rounded to float32. It sums as squares does.
func gapPlain(a, b []float32) float64 {
	b = b[:len(a)]
	var sums [16]float64
	for i := range a {
		v := float64(a[i] - b[i])
		sums[i%len(sums)] += float64(v * v)
	}
	return fold(&sums)
}

// fold adds the upper half of partial sums to the lower half until one is left.
func fold(sums *[16]float64) float64 {
	for n := len(sums) / 2; n > 0; n /= 2 {
		for i := range n {
			sums[i] += sums[i+n]
		}
	}
	return sums[0]
}

// nonFinitePlain returns the index of the first NaN or ±Inf, or -1 if there are none.
func nonFinitePlain(values []float32) int {
	const exponent = 0x7f800000 // all its bits are set in NaN and ±Inf, and in no other values
	for i, v := range values {
		if math.Float32bits(v)&exponent == exponent {
			return i
		}
	}
	return -1
}

// root returns the correctly rounded square root: float64 has enough digits for a second rounding.
func root(v float32) float32 { return float32(math.Sqrt(float64(v))) }
