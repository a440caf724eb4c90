//go:build !amd64

package gemm

// vectors is false: this architecture has only the plain loops.
var vectors bool

func tile(depth int, a, b, c []float32, step int) { tilePlain(depth, a, b, c, step) }
