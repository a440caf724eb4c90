package machine

import (
	"runtime/metrics"

	"github.com/perdure/perdure/internal/core/words"
)

// InUse returns what this process has in use now. It stops nothing: a status may carry it
// however often it is sent.
func InUse() words.Resources {
	s := []metrics.Sample{{Name: "/sched/goroutines:goroutines"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	var n [2]int64
	for i := range s {
		if s[i].Value.Kind() == metrics.KindUint64 { // else a later Go has renamed it
			n[i] = int64(s[i].Value.Uint64())
		}
	}
	return words.Resources{Goroutines: int(n[0]), HeapBytes: n[1]}
}
