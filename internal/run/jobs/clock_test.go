package jobs

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

// TestClocksDiffer: the clock of who asks is an hour ahead of the leader's, or behind. The job is in the same state,
// and who leads it leads on.
func TestClocksDiffer(t *testing.T) {
	r, _ := newRegistry(t)
	j := create(t, r, "first")
	l, lease, _ := lead(t, r, j)
	must(t, l.Tell(t.Context(), func(s *State) { s.Phase, s.Clock, s.End = Running, 7, 30 }))
	for is, said := range map[time.Duration]string{
		0: "just now", time.Hour: "1h0m0s ago", -time.Hour: "just now",
	} {
		r.now = func() time.Time { return at.Add(is) }
		found, err := r.Find(t.Context(), "first")
		must(t, err)
		if found.Phase() != Running || found.Holder == "" {
			t.Errorf("an hour off, the job is %s, and led by %q", found.Phase(), found.Holder)
		}
		var page bytes.Buffer
		must(t, r.Show(&page, found, false))
		if !strings.Contains(page.String(), "7 of 30, "+said) {
			t.Errorf("with a clock that is off by %v it was %s", is, page.String())
		}
		select {
		case <-lease.Done():
			t.Errorf("with a clock that is off by %v the lease is over", is)
		default:
		}
	}
}
