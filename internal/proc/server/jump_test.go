package server

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/testcluster/wallclock"
)

// TestJumpedNotice checks that a jump of the wall clock does not change a server's remaining time.
func TestJumpedNotice(t *testing.T) {
	now := time.Now()
	l := drain{deadline: now.Add(time.Minute)}
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		if left := l.remainingMs(wallclock.Jump(now, by)); left != time.Minute.Milliseconds() {
			t.Errorf("after a jump by %v the remaining time is %d ms", by, left)
		}
	}
}
