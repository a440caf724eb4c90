package gemm

import "golang.org/x/sys/cpu"

// vectors reports whether this machine has AVX2 and its operating system saves the registers.
var vectors = cpu.X86.HasAVX2

func tile(depth int, a, b, c []float32, step int) {
	if !vectors {
		tilePlain(depth, a, b, c, step)
		return
	}
	_, _, _ = a[tileRows*depth-1], b[tileCols*depth-1], c[(tileRows-1)*step+tileCols-1]
	tileAVX2(depth, &a[0], &b[0], &c[0], step)
}

// tileAVX2 requires a depth of at least 1.
//
//go:noescape
func tileAVX2(depth int, a, b, c *float32, step int)
