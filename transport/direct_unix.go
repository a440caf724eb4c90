//go:build unix

package transport

import "syscall"

// writeNow writes of small what the socket takes without waiting and returns how much
// that was. An error is left for the writer goroutine to meet again. c.mu is
// held.
func (c *tcpConn) writeNow() int {
	if c.raw == nil {
		return 0
	}
	if c.try == nil { // one closure for all writes: it would escape each time
		c.try = func(fd uintptr) bool {
			c.tried, _ = syscall.Write(int(fd), c.small)
			return true
		}
	}
	c.tried = 0
	_ = c.raw.Write(c.try) // see above
	return max(c.tried, 0)
}
