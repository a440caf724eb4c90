//go:build !unix

package transport

// writeOn writes the prepared data, blocking if necessary, and returns the number of bytes written.
func (c *socketConn) writeOn() (n int, err error) {
	k, err := c.out.vector.WriteTo(c.sock)
	return int(k), err
}

// writeStep is used on systems with non-blocking writes.
func (c *socketConn) writeStep(uintptr) bool { return true }
