package main

import (
	"testing"

	"golang.org/x/sys/unix"
)

// Workers give way to the job's servers, whatever priority the whole job was given: they
// never take more than it.
func TestNicer(t *testing.T) {
	for priority, want := range map[int]int{40: -10, 20: 10, 15: 15, 10: 19, 1: 19} {
		if got := nicer(priority); got != want {
			t.Errorf("at niceness %d: %d, want %d", 20-priority, got, want)
		}
	}
	if now, err := unix.Getpriority(unix.PRIO_PROCESS, 0); err != nil || nicer(now) < 20-now {
		t.Errorf("priority %d is given up for niceness %d: %v", now, nicer(now), err)
	}
}
