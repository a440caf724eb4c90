package mf

// Operations for one rating, on rows of equal length, a multiple of 8. Their order is fixed and none is fused, so every
// machine computes the same bits.

// stepPlain trains both rows on one rating and returns the rating's error before the step.
func stepPlain(u, v []float32, target, rate, keep float32) (e float32) {
	e = target - dotPlain(u, v)
	b := float32(rate * e)
	v = v[:len(u)]
	for i, x := range u {
		y := v[i]
		u[i] = float32(keep*x) + float32(b*y)
		v[i] = float32(keep*y) + float32(b*x)
	}
	return e
}

// dotPlain uses eight sums. For each block of 32 values, it adds four products before it adds them to a sum. The
// latency of a sum is thus paid once per 32 values.
func dotPlain(u, v []float32) float32 {
	var s0, s1, s2, s3, s4, s5, s6, s7 float32
	v = v[:len(u)]
	for len(u) >= 32 {
		x, y := u[:32:32], v[:32:32]
		s0 += (float32(x[0]*y[0]) + float32(x[8]*y[8])) + (float32(x[16]*y[16]) + float32(x[24]*y[24]))
		s1 += (float32(x[1]*y[1]) + float32(x[9]*y[9])) + (float32(x[17]*y[17]) + float32(x[25]*y[25]))
		s2 += (float32(x[2]*y[2]) + float32(x[10]*y[10])) + (float32(x[18]*y[18]) + float32(x[26]*y[26]))
		s3 += (float32(x[3]*y[3]) + float32(x[11]*y[11])) + (float32(x[19]*y[19]) + float32(x[27]*y[27]))
		s4 += (float32(x[4]*y[4]) + float32(x[12]*y[12])) + (float32(x[20]*y[20]) + float32(x[28]*y[28]))
		s5 += (float32(x[5]*y[5]) + float32(x[13]*y[13])) + (float32(x[21]*y[21]) + float32(x[29]*y[29]))
		s6 += (float32(x[6]*y[6]) + float32(x[14]*y[14])) + (float32(x[22]*y[22]) + float32(x[30]*y[30]))
		s7 += (float32(x[7]*y[7]) + float32(x[15]*y[15])) + (float32(x[23]*y[23]) + float32(x[31]*y[31]))
		u, v = u[32:], v[32:]
	}
	for len(u) >= 8 {
		x, y := u[:8:8], v[:8:8]
		s0 += float32(x[0] * y[0])
		s1 += float32(x[1] * y[1])
		s2 += float32(x[2] * y[2])
		s3 += float32(x[3] * y[3])
		s4 += float32(x[4] * y[4])
		s5 += float32(x[5] * y[5])
		s6 += float32(x[6] * y[6])
		s7 += float32(x[7] * y[7])
		u, v = u[8:], v[8:]
	}
	return ((s0 + s4) + (s2 + s6)) + ((s1 + s5) + (s3 + s7))
}
