package coordinator

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testcluster/wallclock"
)

// TestJumpedAttention checks that a jump of the wall clock is not mistaken for a late tick, so failure detection
// continues and the user is not notified. Neither does a stopped wall clock make a tick late.
func TestJumpedAttention(t *testing.T) {
	const every = 100 * time.Millisecond
	start := time.Now()
	a, l := loopMonitor{every: every}, lag{}
	for n, shows := range []time.Duration{0, time.Hour, time.Hour, 0, -time.Hour, time.Hour, 0} {
		for i := range 100 {
			now := wallclock.Jump(start.Add(time.Duration(100*n+i)*every), shows)
			listened := a.keptUp(now, 0)
			if !listened {
				t.Errorf("the loop did not listen at tick %d of part %d", i, n)
			}
			if text := l.note(now, listened, 0); text != "" {
				t.Errorf("the user is notified: %s", text)
			}
		}
	}
	// A late tick is late even if the wall clock stands still or is set back.
	for _, shows := range []time.Duration{0, -2 * time.Second} {
		before := start.Add(time.Hour)
		a.keptUp(before, 0)
		if a.keptUp(wallclock.Jump(before.Add(2*time.Second), shows), 0) {
			t.Errorf("listened at a tick two seconds late, with a wall clock that moved by %v", shows)
		}
	}
}
