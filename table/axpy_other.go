//go:build !amd64

package table

// axpy computes y += a·x.
func axpy(a float32, x, y []float32) { portableAxpy(a, x, y) }
