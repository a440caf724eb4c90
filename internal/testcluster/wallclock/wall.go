// Package wallclock simulates jumps of the machine's wall clock in tests. It returns times as time.Now returns them
// after the clock was set.
package wallclock

import (
	"time"
	"unsafe"
)

// moment mirrors the layout of a time.Time with a monotonic reading; TestJump verifies it.
type moment struct {
	wall uint64 // a flag, 33 bits of seconds of the wall clock, 30 bits of nanoseconds
	ext  int64  // the monotonic clock
	loc  *time.Location
}

const secondBit = 30

// Jump moves t's wall clock by whole seconds (backward if by is negative) and keeps its monotonic reading. t must come
// from time.Now, so that it has one.
func Jump(t time.Time, by time.Duration) time.Time {
	m := (*moment)(unsafe.Pointer(&t))
	m.wall += uint64(int64(by/time.Second)) << secondBit
	return t
}
