package supervisor

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/testcluster/wallclock"
)

// TestJumpedTimeline lets the wall clock jump between a failure and the reports about it. Durations then come from the
// monotonic clock, and are never negative.
func TestJumpedTimeline(t *testing.T) {
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		var line timeline
		at := time.Now()
		line.died("worker:1", Exit{PID: 7, At: at}, time.Second, wire.Progress{})
		sent := func(after time.Duration) time.Time { return wallclock.Jump(at.Add(after), by) }
		line.detected("worker:1", time.Unix(0, sent(time.Second).UnixNano()), sent(1100*time.Millisecond))
		serves := wire.Event{Target: "worker:1", UnixNs: sent(2 * time.Second).UnixNano()}
		line.serving(serves, sent(2200*time.Millisecond))
		f := line.list()[0]
		detected, serving := time.Second, 2*time.Second
		if by != 0 { // only the time of receipt is known
			detected, serving = 1100*time.Millisecond, 2200*time.Millisecond
		}
		if *f.Detected != detected || *f.Serving != serving {
			t.Errorf("after a jump by %v: detected after %v, serving after %v; want %v and %v", by, *f.Detected,
				*f.Serving, detected, serving)
		}
	}
}
