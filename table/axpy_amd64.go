package table

import "gonum.org/v1/gonum/blas/blas32"

// axpy computes y += a·x. On this architecture the library multiplies and adds
// in two steps, as portableAxpy does: the bits are the same. Only where both a
// product and the value it is added to are NaN may it be the other one's NaN.
func axpy(a float32, x, y []float32) {
	blas32.Axpy(a, blas32.Vector{N: len(y), Inc: 1, Data: x}, blas32.Vector{N: len(y), Inc: 1, Data: y})
}
