//go:build !unix

package transport

// iovec is used on systems with vectored writes.
type iovec struct{}

// writev leaves all data to the writer.
func (c *socketConn) writev(uintptr) {}
