package coordinator

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/rig/wall"
)

// TestJumpedAttention: a jump of the wall clock is no tick that came late, so silence is judged on; and nobody is told
// that the coordinator is behind. A clock that stands makes no tick late, either.
func TestJumpedAttention(t *testing.T) {
	const every = 100 * time.Millisecond
	start := time.Now()
	a, l := attention{every: every}, lag{}
	for n, shows := range []time.Duration{0, time.Hour, time.Hour, 0, -time.Hour, time.Hour, 0} {
		for i := range 100 {
			now := wall.Jump(start.Add(time.Duration(100*n+i)*every), shows)
			listened := a.listened(now, 0)
			if !listened {
				t.Errorf("tick %d of part %d was not listened to", i, n)
			}
			if text := l.note(now, listened, 0); text != "" {
				t.Errorf("people are told: %s", text)
			}
		}
	}
	// One that is late is late whatever the wall clock says: it stands, or goes back.
	for _, shows := range []time.Duration{0, -2 * time.Second} {
		before := start.Add(time.Hour)
		a.listened(before, 0)
		if a.listened(wall.Jump(before.Add(2*time.Second), shows), 0) {
			t.Errorf("two seconds late, with a clock that goes %v, and it has listened", shows)
		}
	}
}
