//go:build !unix

package transport

// writeOn writes what is lined up, waiting where it must, and returns how much it
// wrote.
func (c *socketConn) writeOn() (n int, err error) {
	k, err := c.out.vector.WriteTo(c.sock)
	return int(k), err
}

// writeStep is of systems whose sockets can be written without waiting.
func (c *socketConn) writeStep(uintptr) bool { return true }
