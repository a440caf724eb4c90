package worker

import (
	"testing"
	"time"
)

// A look counts silence while the process runs, and nothing of what it slept through.
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
	look(every, false, 0) // the first: it only begins
	start := now
	for i := range maxSilentChecks - 1 {
		look(every, false, i+1)
	}
	look(time.Hour, false, maxSilentChecks-1) // it was frozen: what came meanwhile is read only now
	if !h.Since().Equal(start) {
		t.Errorf("heard last at %v, want %v", h.Since(), start)
	}
	look(every, true, 0)
	look(every, false, 1)
	look(2*every, false, 2) // a little late is not frozen
	look(every, false, 3)
}
