// Package machine measures the machine and the process (memory, cores, processor), and limits what the process
// takes: how much memory there is ([Memory], [FreeMemory]), what the process has in use ([InUse]), how much
// garbage it lets pile up ([Garbage]), how many cores it uses ([Cores]) and which processor it has ([CPUModel]).
//
// A process sets the last two once, when it begins; GOGC and GOMAXPROCS in the environment
// override them. How much memory there is only Linux tells: elsewhere nothing is known, and
// whoever asks does without. All of it is safe for concurrent use.
package machine

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
)

const (
	garbageLeast = 64 << 20 // bytes that may pile up however little lives, in all processes of a role
	garbageFloor = 8 << 20  // and in each
	garbageShare = 8        // and this part of what lives on top
)

// Garbage lets garbage grow, in each of n like processes on this machine, to its
// part of garbageLeast and 1/garbageShare of what lives. Go's own pace is wrong for
// both ends: a small server, whose messages are its only garbage, would collect
// all the time, and one with a large table would let it double. GOGC in the
// environment overrides it.
func Garbage(n int) {
	if os.Getenv("GOGC") == "" {
		watchGC(max(garbageFloor, garbageLeast/uint64(n)), 0)
	}
}

// watchGC sets the pace now and after every collection.
func watchGC(least uint64, before int) {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	now := gcPercent(least, live[0].Value.Uint64())
	if now != before {
		debug.SetGCPercent(now)
	}
	// The finaliser runs when a collection finds its object unreachable, and
	// makes the next one.
	runtime.SetFinalizer(&struct{ _ [64]byte }{}, func(any) { watchGC(least, now) })
}

// gcPercent returns the garbage to allow, in percent of the bytes that live.
func gcPercent(least, live uint64) int {
	live = max(live, 4<<20) // the least that Go reckons with
	return int(100 * (least + live/garbageShare) / live)
}

// Cores keeps one of n servers, or one of n workers, of a local job from
// taking all cores: half of them are the servers', half the workers'. GOMAXPROCS
// in the environment overrides it.
func Cores(n int) { UseCores(max(1, runtime.NumCPU()/2/n)) }

// UseCores sets GOMAXPROCS unless the environment does.
func UseCores(n int) {
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(n)
	}
}

// CPUModel returns the processor's name.
func CPUModel() string {
	text, _ := os.ReadFile("/proc/cpuinfo") // Linux has it
	for line := range strings.Lines(string(text)) {
		if name, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(name) == "model name" {
			return strings.TrimSpace(value)
		}
	}
	return "unknown processor"
}
