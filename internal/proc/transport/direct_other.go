//go:build !unix

package transport

// iovec is of systems where many pieces are written at once.
type iovec struct{}

// writev leaves everything to the writer.
func (c *socketConn) writev(uintptr) {}
