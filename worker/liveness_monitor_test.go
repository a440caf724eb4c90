package worker

import (
	"testing"
	"time"
)

// TestHearingCountsLooks checks that a check counts silence only while this process runs, not while it is frozen.
func TestHearingCountsLooks(t *testing.T) {
	const every = time.Second
	now := time.Unix(0, 0)
	var h livenessMonitor
	look := func(after time.Duration, received bool, want int) {
		t.Helper()
		if now = now.Add(after); received {
			h.RecordMessage()
		}
		if got := h.Check(now, every); got != want {
			t.Fatalf("after %v: silent for %d looks, want %d", after, got, want)
		}
	}
	look(every, false, 0) // the first check only starts the count
	start := now
	for i := range maxSilentChecks - 1 {
		look(every, false, i+1)
	}
	look(time.Hour, false, maxSilentChecks-1) // it was frozen: messages that arrived meanwhile are read only now
	if !h.Since().Equal(start) {
		t.Errorf("heard last at %v, want %v", h.Since(), start)
	}
	look(every, true, 0)
	look(every, false, 1)
	look(2*every, false, 2) // slightly late, but not frozen
	look(every, false, 3)
}
