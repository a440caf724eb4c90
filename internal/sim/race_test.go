//go:build race

package sim_test

import "runtime"

// Two goroutines of one synctest bubble that find a due timer at the same instant use one
// context of the race detector at once, and it crashes (golang/go#78156). With one
// processor they cannot; races are found as before, for they are told by what happened
// before what.
func init() {
	runtime.GOMAXPROCS(1)
	mostShort, foundShort = 2, false
}
