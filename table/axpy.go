package table

// portableAxpy computes y += a·x, in the operations and the order that fix the
// bits on every machine. The conversion keeps the compiler from fusing the
// multiplication with the addition, which would give other bits on machines
// that have such an instruction. Where an architecture has a faster kernel, it
// is held against this one.
func portableAxpy(a float32, x, y []float32) {
	if a == 0 { // as the library has it: not even a NaN in x comes through
		return
	}
	x = x[:len(y)]
	for i := range y {
		y[i] += float32(a * x[i])
	}
}
