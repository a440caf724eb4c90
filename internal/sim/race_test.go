//go:build race

package sim_test

import "runtime"

// init limits the race detector to one processor. If two goroutines of one synctest bubble find a due timer at the same
// instant, they use one race detector context concurrently, and the detector crashes (golang/go#78156). Races are still
// found, because the detector checks happens-before order.
func init() {
	runtime.GOMAXPROCS(1)
	maxShortSeeds, foundShort = 2, false
}
