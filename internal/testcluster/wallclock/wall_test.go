package wallclock

import (
	"testing"
	"time"
)

// TestJump checks that a jump changes the wall clock but not measured durations.
func TestJump(t *testing.T) {
	at := time.Now()
	for _, by := range []time.Duration{time.Hour, -time.Hour, 0, 400 * 24 * time.Hour} {
		jumped := Jump(at, by)
		if took := jumped.Sub(at); took != 0 {
			t.Errorf("a jump by %v took %v", by, took)
		}
		if moved := jumped.Round(0).Sub(at.Round(0)); moved != by {
			t.Errorf("a jump by %v moved the wall clock by %v", by, moved)
		}
		if later := jumped.Add(time.Minute); later.Sub(at) != time.Minute || !later.After(at) {
			t.Errorf("a minute after a jump by %v is %v later", by, later.Sub(at))
		}
	}
}
