// Package machine measures and limits the resources of the machine and the process. It reports how much memory the
// machine has ([Memory], [FreeMemory]), the resources in use ([ResourcesInUse]) and the processor model ([CPUModel]),
// and it bounds the garbage that may accumulate ([LimitGarbage]) and the cores in use ([LimitCores]).
//
// A process calls Garbage and Cores once, at startup; GOGC and GOMAXPROCS in the environment override them. Memory
// sizes are known only on Linux: callers must handle unknown values. All functions are safe for concurrent use.
package machine

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
)

const (
	minGarbage        = 64 << 20 // bytes of garbage always allowed, in all processes of a role together
	minProcessGarbage = 8 << 20  // the same for one process
	garbageShare      = 8        // plus the live heap divided by this
)

// LimitGarbage sets how much garbage each of n similar processes on this machine may accumulate: its part of minGarbage
// plus 1/garbageShare of the live heap. Go's default pace is wrong at both ends. A small server, whose only garbage is
// messages, would collect all the time, and a server with a large table would let its heap double. GOGC in the
// environment overrides the setting.
func LimitGarbage(n int) {
	if os.Getenv("GOGC") == "" {
		watchGC(max(minProcessGarbage, minGarbage/uint64(n)), 0)
	}
}

// watchGC sets the GC percentage now and after every collection.
func watchGC(least uint64, before int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	now := gcPercent(least, live[0].Value.Uint64())
	if now != before {
		debug.SetGCPercent(now)
	}
	// The finalizer runs when a collection finds its object unreachable, and then creates the next such object.
	runtime.SetFinalizer(&struct{ _ [64]byte }{}, func(any) { watchGC(least, now) })
}

// gcPercent returns the allowed garbage as a percentage of the live heap.
func gcPercent(least, live uint64) int {
	live = max(live, 4<<20) // Go's minimum heap
	return int(100 * (least + live/garbageShare) / live)
}

// LimitCores limits one of n servers, or one of n workers, of a local job to its share of the cores. Servers share one
// half of the cores, workers the other. GOMAXPROCS in the environment overrides it.
func LimitCores(n int) { SetCores(max(1, runtime.NumCPU()/2/n)) }

// SetCores sets GOMAXPROCS unless the environment does.
func SetCores(n int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n)
	}
}

// CPUModel returns the processor's model name.
func CPUModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // exists only on Linux
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
