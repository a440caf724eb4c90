//go:build !amd64

package table

import "unsafe"

// prefetch does nothing; it only affects speed.
func prefetch(at *unsafe.Pointer, n, lines int) {}
