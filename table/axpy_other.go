//go:build !amd64

package table

// axpy computes y += a·x. The conversion keeps the compiler from fusing the
// multiplication with the addition, which would give other bits on machines
// that have such an instruction.
func axpy(a float32, x, y []float32) {
	if a == 0 { // as the library has it
		return
	}
	x = x[:len(y)]
	for i := range y {
		y[i] += float32(a * x[i])
	}
}
