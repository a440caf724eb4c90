//go:build !amd64

package gemm

// vectors: this architecture has the plain loops only.
var vectors bool

func tile(depth int, a, b, c []float32, step int) { tilePlain(depth, a, b, c, step) }
