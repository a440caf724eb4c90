package server

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/rig/wall"
)

// TestJumpedNotice: how long a server will still be there does not change when the wall clock jumps.
func TestJumpedNotice(t *testing.T) {
	now := time.Now()
	l := leaving{by: now.Add(time.Minute)}
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		if left := l.notice(wall.Jump(now, by)); left != time.Minute.Milliseconds() {
			t.Errorf("after a jump by %v it is there for %d ms", by, left)
		}
	}
}
