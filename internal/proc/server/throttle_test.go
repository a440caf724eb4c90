package server

import (
	"testing"
	"time"
)

// TestThrottle checks that pieces take as long as the rate demands, even if every wait oversleeps, and that a pause
// does not permit a burst.
func TestThrottle(t *testing.T) {
	const piece, pieces, processors = 1 << 19, 2000, 2
	for _, late := range []time.Duration{0, time.Millisecond} {
		var th copyThrottle
		start := time.Unix(1000, 0)
		now := start
		for range pieces {
			if d := th.reserve(now, piece, processors); d >= slack/2 {
				now = now.Add(d + late)
			}
		}
		rate := piece * pieces / now.Sub(start).Seconds() / (copyRate * processors)
		if rate < 0.95 || rate > 1.05 {
			t.Errorf("waits that are %v late: %.2f of the rate", late, rate)
		}
		now = now.Add(time.Hour)
		if d := th.reserve(now, 10*piece, processors); d < time.Millisecond {
			t.Errorf("after a pause, %d bytes take %v", 10*piece, d)
		}
	}
}
