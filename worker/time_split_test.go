package worker

import (
	"testing"
	"time"
)

// TestOwnWaits checks that the waiting that a program measures itself replaces that in the client's calls, and is
// divided like it.
func TestOwnWaits(t *testing.T) {
	const s = time.Second
	began := time.Unix(0, 0)
	var of timeSplit
	check := func(what string, at, compute, stale, comm time.Duration) {
		t.Helper()
		if got := of.Compute(began.Add(at)); got != compute || of.Stale() != stale || of.Comm() != comm {
			t.Errorf("%s: %v, %v, %v, want %v, %v, %v", what, got, of.Stale(), of.Comm(), compute, stale, comm)
		}
	}
	of.Begin(began)
	of.Blocked(3*s, s, false, 0)
	check("calls", 10*s, 7*s, s, 2*s)
	of.AddOwn(0)
	of.Blocked(8*s, 6*s, false, 0)
	check("calls of another thread", 20*s, 17*s, s, 2*s)
	of.AddOwn(4 * s)
	check("a wait for that thread", 20*s, 13*s, 4*s, 3*s)
	of.AddOwn(s)
	check("a wait without calls", 20*s, 12*s, 4*s, 4*s)
}
