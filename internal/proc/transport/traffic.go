package transport

import "sync/atomic"

// traffic counts the bytes of all socket connections of this process.
var traffic struct{ in, out atomic.Int64 }

// Traffic returns how many bytes this process has received and sent over TCP and Unix sockets.
func Traffic() (in, out int64) { return traffic.in.Load(), traffic.out.Load() }
