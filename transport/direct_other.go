//go:build !unix

package transport

// writeNow leaves everything to the writer goroutine.
func (c *tcpConn) writeNow() int { return 0 }
