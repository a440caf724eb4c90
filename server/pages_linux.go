package server

import (
	"syscall"
	"unsafe"

	"github.com/perdure/perdure/table"
)

// largePages asks for rows that are still to be filled to be put on large pages: the
// system would spend about as long on giving memory out in small ones as filling it
// takes.
func largePages(rows table.Image) {
	for _, b := range rows.Memory() {
		if len(b) < 2*largePage {
			continue
		}
		b = b[-uintptr(unsafe.Pointer(&b[0]))%largePage:]
		_ = syscall.Madvise(b[:len(b)/largePage*largePage], syscall.MADV_HUGEPAGE) // it is only advice
	}
}

const largePage = 2 << 20
