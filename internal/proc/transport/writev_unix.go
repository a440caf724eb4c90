//go:build unix && !linux

package transport

import "syscall"

// iovec is used on systems with vectored writes.
type iovec struct{}

// writev writes as much of the prepared data as the socket accepts without blocking.
func (c *socketConn) writev(fd uintptr) {
	for o := &c.out; len(o.vector) > 0; {
		n, err := syscall.Write(int(fd), o.vector[0])
		if err == syscall.EINTR {
			continue
		}
		if err != nil {
			o.failed(err.(syscall.Errno))
			return
		}
		o.advance(n)
	}
}

// readNow reads from a non-blocking socket.
func readNow(fd uintptr, b []byte) (int, error) { return syscall.Read(int(fd), b) }
