package table

import "gonum.org/v1/gonum/blas/blas32"

// axpy computes y += a·x. On this architecture the library multiplies and adds
// in two steps, as axpy does elsewhere: the bits are the same.
func axpy(a float32, x, y []float32) {
	blas32.Axpy(a, blas32.Vector{N: len(y), Inc: 1, Data: x}, blas32.Vector{N: len(y), Inc: 1, Data: y})
}
