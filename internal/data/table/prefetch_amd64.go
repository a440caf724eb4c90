package table

import "unsafe"

// prefetch starts loading the given number of cache lines from each of n addresses and does not wait for them. An
// address may be nil: nothing is read from it.
//
//go:noescape
func prefetch(at *unsafe.Pointer, n, lines int)
