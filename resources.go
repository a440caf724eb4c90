package perdure

import "runtime/metrics"

// Resources are what a process has in use, as its Go runtime counts it.
type Resources struct {
	Goroutines int   `json:"goroutines"`
	HeapBytes  int64 `json:"heap_bytes"` // of objects that live, or that no collection has freed yet
}

// ReadResources returns what this process has in use now. It stops nothing: a
// status may carry it however often it is sent.
func ReadResources() Resources {
	s := []metrics.Sample{{Name: "/sched/goroutines:goroutines"}, {Name: "/memory/classes/heap/objects:bytes"}}
	metrics.Read(s)
	var n [2]int64
	for i := range s {
		if s[i].Value.Kind() == metrics.KindUint64 { // else a later Go has renamed it
			n[i] = int64(s[i].Value.Uint64())
		}
	}
	return Resources{Goroutines: int(n[0]), HeapBytes: n[1]}
}
