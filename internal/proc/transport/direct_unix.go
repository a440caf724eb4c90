//go:build unix && !linux

package transport

import "syscall"

// iovec is of systems where many pieces are written at once.
type iovec struct{}

// writev writes of what is lined up all that the socket takes without waiting.
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

// readNow reads what there is, from a socket that does not wait.
func readNow(fd uintptr, b []byte) (int, error) { return syscall.Read(int(fd), b) }
