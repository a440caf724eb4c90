package worker

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/availability"
	"github.com/perdure/perdure/internal/testcluster/wallclock"
)

// TestJumpedOutage checks that a jump of the wall clock neither hastens nor delays the detection of an outage.
func TestJumpedOutage(t *testing.T) {
	for _, by := range []time.Duration{0, time.Hour, -time.Hour} {
		now := time.Now()
		o := outages{Watch: availability.Watch{After: int64(defaultOutageAfter)}, began: now}
		var sh availability.Shard
		gone := availability.Health{AnswerPending: true}
		for _, c := range []struct {
			after time.Duration
			want  availability.Decision
		}{
			{0, availability.Unchanged},
			{defaultOutageAfter - time.Millisecond, availability.Unchanged},
			{defaultOutageAfter, availability.Failed},
		} {
			at := now.Add(time.Second + c.after)
			if c.after > 0 {
				at = wallclock.Jump(at, by)
			}
			if got := o.Decide(&sh, gone, o.at(at)); got != c.want {
				t.Errorf("after %v, with a jump by %v: %v, want %v", c.after, by, got, c.want)
			}
		}
	}
}
