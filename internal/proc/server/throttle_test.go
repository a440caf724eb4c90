package server

import (
	"testing"
	"time"
)

// What is taken in piece by piece takes as long as the rate says, also where each wait
// takes longer than asked for; a pause gives no right to a burst.
func TestThrottle(t *testing.T) {
	const piece, pieces, processors = 1 << 19, 2000, 2
	for _, late := range []time.Duration{0, time.Millisecond} {
		var th copyThrottle
		begin := time.Unix(1000, 0)
		now := begin
		for range pieces {
			if d := th.take(now, piece, processors); d >= slack/2 {
				now = now.Add(d + late)
			}
		}
		rate := piece * pieces / now.Sub(begin).Seconds() / (copyRate * processors)
		if rate < 0.95 || rate > 1.05 {
			t.Errorf("waits that are %v late: %.2f of the rate", late, rate)
		}
		now = now.Add(time.Hour)
		if d := th.take(now, 10*piece, processors); d < time.Millisecond {
			t.Errorf("after a pause, %d bytes take %v", 10*piece, d)
		}
	}
}
