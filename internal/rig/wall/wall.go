// Package wall lets a machine's wall clock jump, for tests: it has moments as time.Now returns them after somebody
// has set the clock.
package wall

import (
	"time"
	"unsafe"
)

// moment is how package time keeps a time.Time with a monotonic reading: TestJump sees that it is so.
type moment struct {
	wall uint64 // a flag, 33 bits of seconds of the wall clock, 30 bits of nanoseconds
	ext  int64  // the monotonic clock
	loc  *time.Location
}

const secondBit = 30

// Jump is the same moment with a wall clock that is ahead by whole seconds; by is negative where it is behind. t comes
// from time.Now, so that it has a monotonic reading, which stays as it is.
func Jump(t time.Time, by time.Duration) time.Time {
	m := (*moment)(unsafe.Pointer(&t))
	m.wall += uint64(int64(by/time.Second)) << secondBit
	return t
}
