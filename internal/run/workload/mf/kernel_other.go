//go:build !amd64

package mf

// vectors is false: this architecture has only the plain loops.
var vectors bool

func step(u, v []float32, target, rate, keep float32) (e float32) {
	return stepPlain(u, v, target, rate, keep)
}

func dot(u, v []float32) float32 { return dotPlain(u, v) }
