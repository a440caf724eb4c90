package worker

import (
	"testing"
	"time"
)

// TestSplit checks that each moment from the first read to the last clock belongs to one category, and that the
// remainder is computation.
func TestSplit(t *testing.T) {
	const s = time.Second
	var a timeSplit
	at := time.Unix(1000, 0)
	a.AddBoundWait(time.Minute) // nothing counts before the first read
	a.AddClockTime(time.Minute, 0)
	a.Blocked(time.Minute, 0, false, 0)
	if a.Compute(at) != 0 || a.Stale() != 0 || a.Comm() != 0 {
		t.Errorf("before it began: %+v", a)
	}
	a.Begin(at)
	a.Begin(at.Add(time.Hour)) // a later read does not restart it
	a.AddBoundWait(2 * s)
	a.AddClockTime(5*s, 0)        // includes those two
	a.Blocked(4*s, s, false, 0)   // a server delayed the answer for one second
	a.Blocked(4*s, 0, true, 3*s)  // one second until there was something to push
	a.Blocked(4*s, 9*s, false, 0) // never more than the actual wait
	if a.Stale() != 8*s || a.Comm() != 9*s || a.Compute(at.Add(time.Minute)) != 43*s {
		t.Errorf("stale %v, communication %v, computing %v", a.Stale(), a.Comm(), a.Compute(at.Add(time.Minute)))
	}
	a.SetEnd(at.Add(20 * s))
	if got := a.Compute(at.Add(time.Hour)); got != 3*s {
		t.Errorf("until its last clock it computed for %v", got)
	}
	a.SetEnd(time.Time{})
	if got := a.Compute(at.Add(time.Minute)); got != 43*s {
		t.Errorf("without an end it computed for %v", got)
	}
}

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
