package machine

import (
	"runtime/metrics"

	"github.com/perdure/perdure/internal/core/protocol"
)

// ResourcesInUse returns the resources that this process uses now. It does not stop the world, so every status message
// may include it.
func ResourcesInUse() protocol.Resources {
	s := []metrics.Sample{{Name: "/sched/goroutines:goroutines"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	var n [2]int64
	for i := range s {
		if s[i].Value.Kind() == metrics.KindUint64 { // otherwise a later Go version renamed it
			n[i] = int64(s[i].Value.Uint64())
		}
	}
	return protocol.Resources{Goroutines: int(n[0]), HeapBytes: n[1]}
}
