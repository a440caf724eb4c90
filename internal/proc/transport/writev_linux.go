package transport

import (
	"syscall"
	"unsafe"
)

type iovec = syscall.Iovec

// maxPieces is the maximum number of pieces in one writev (IOV_MAX).
const maxPieces = 1024

// readNow reads from a non-blocking socket. System calls on such sockets are raw because they return soon. For other
// calls, the runtime would hand this thread's processor to another thread after 20 µs.
func readNow(fd uintptr, b []byte) (int, error) {
	if len(b) == 0 {
		return 0, nil
	}
	n, _, errno := syscall.RawSyscall(syscall.SYS_READ, fd, uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
	if errno != 0 {
		return 0, errno
	}
	return int(n), nil
}

// writev writes as much of the prepared data as the socket accepts without blocking.
func (c *socketConn) writev(fd uintptr) {
	for o := &c.out; len(o.vector) > 0; {
		o.iovecs = o.iovecs[:0]
		for _, piece := range o.vector[:min(len(o.vector), maxPieces)] {
			v := iovec{Base: &piece[0]}
			v.SetLen(len(piece))
			o.iovecs = append(o.iovecs, v)
		}
		n, _, errno := syscall.RawSyscall(syscall.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&o.iovecs[0])),
			uintptr(len(o.iovecs)))
		clear(o.iovecs) // releases the payloads
		if errno == syscall.EINTR {
			continue
		}
		if errno != 0 {
			o.failed(errno)
			return
		}
		o.advance(int(n))
	}
}
