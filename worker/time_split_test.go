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
		t.Errorf("going on it computed for %v", got)
	}
}
