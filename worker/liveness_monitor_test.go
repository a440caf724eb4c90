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
	look := func(after time.Duration, heard bool, want int) {
		t.Helper()
		if now = now.Add(after); heard {
			h.RecordMessage()
		}
		if got := h.Check(now, every); got != want {
			t.Fatalf("after %v: silent for %d looks, want %d", after, got, want)
		}
	}
	look(every, false, 0) // the first: it only begins
	begin := now
	for i := range maxSilentChecks - 1 {
		look(every, false, i+1)
	}
	look(time.Hour, false, maxSilentChecks-1) // it was frozen: what came meanwhile is read only now
	if !h.Since().Equal(begin) {
		t.Errorf("heard last at %v, want %v", h.Since(), begin)
	}
	look(every, true, 0)
	look(every, false, 1)
	look(2*every, false, 2) // a little late is not frozen
	look(every, false, 3)
}
