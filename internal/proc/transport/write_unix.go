//go:build unix

package transport

import (
	"os"
	"syscall"
)

// failed records why writev stopped.
func (o *outgoing) failed(errno syscall.Errno) {
	if errno != syscall.EAGAIN {
		o.err = os.NewSyscallError("writev", errno)
	}
}

// writeOn writes the prepared data, blocking if necessary, and returns the number of bytes written.
func (c *socketConn) writeOn() (n int, err error) {
	c.out.sent, c.out.err = 0, nil
	if err := c.raw.Write(c.step); err != nil {
		return c.out.sent, err
	}
	return c.out.sent, c.out.err
}

// writeStep adapts writev for raw.Write: false means that it must wait.
func (c *socketConn) writeStep(fd uintptr) bool {
	c.writev(fd)
	return len(c.out.vector) == 0 || c.out.err != nil
}
