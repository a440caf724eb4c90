package transport

import "sync/atomic"

// traffic is what all socket connections of this process have carried.
var traffic struct{ in, out atomic.Int64 }

// Traffic returns how many bytes this process has received and sent over connections of TCP, and of those within a
// machine, since it began.
func Traffic() (in, out int64) { return traffic.in.Load(), traffic.out.Load() }
