package table

import "unsafe"

// prefetch has the processor bring the given number of cache lines from each of
// n addresses on, and waits for none of them. An address may be nil: nothing is
// read.
//
//go:noescape
func prefetch(at *unsafe.Pointer, n, lines int)
