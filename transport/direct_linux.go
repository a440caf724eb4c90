package transport

import (
	"syscall"
	"unsafe"
)

type iovec = syscall.Iovec

// maxPieces is how many pieces one writev takes (IOV_MAX).
const maxPieces = 1024

// writev writes of what is lined up all that the socket takes without waiting.
func (c *socketConn) writev(fd uintptr) {
	for o := &c.out; len(o.vector) > 0; {
		o.iovecs = o.iovecs[:0]
		for _, piece := range o.vector[:min(len(o.vector), maxPieces)] {
			v := iovec{Base: &piece[0]}
			v.SetLen(len(piece))
			o.iovecs = append(o.iovecs, v)
		}
		n, _, errno := syscall.Syscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&o.iovecs[0])), uintptr(len(o.iovecs)))
		clear(o.iovecs) // lets the payloads go
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			return
		}
		o.advance(int(n))
	}
}
