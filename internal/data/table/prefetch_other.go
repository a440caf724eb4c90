//go:build !amd64

package table

import "unsafe"

// prefetch would have the processor bring memory: nothing but speed depends
// on it.
func prefetch(at *unsafe.Pointer, n, lines int) {}
