package transport_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/proc/transport"
)

// TestRests checks that one of several heartbeats sends a status, also after a status out of turn.
func TestRests(t *testing.T) {
	var b transport.Heartbeat
	for i, want := range []bool{true, true, false, true} {
		if i == 3 {
			b.SendingOn(nil)
		}
		if got := b.Skip(3); got != want {
			t.Errorf("heartbeat %d is skipped: %v", i, got)
		}
	}
	for _, per := range []int{0, 1} {
		if b.SendingOn(nil); b.Skip(per) {
			t.Errorf("skipped a heartbeat when one of %d sends a status", per)
		}
	}
}

// TestSpeaks checks that a new connection receives the complete status.
func TestSpeaks(t *testing.T) {
	var b transport.Heartbeat
	first, second := new(int), new(int)
	for i, c := range []struct {
		on   any
		want bool
	}{{first, true}, {first, false}, {second, true}, {first, true}} {
		if got := b.SendingOn(c.on); got != c.want {
			t.Errorf("status %d: complete %v", i, got)
		}
	}
}

// TestCounts checks that counts are sent once per second, and when they must be.
func TestCounts(t *testing.T) {
	var b transport.Heartbeat
	start := time.Unix(1000, 0)
	for i, c := range []struct {
		after time.Duration
		must  bool
		want  bool
	}{
		{0, false, true},
		{time.Second - 1, false, false},
		{time.Second, false, true},
		{time.Second + 1, true, true},
		{2 * time.Second, false, false},
		{2*time.Second + 1, false, true},
		{3 * time.Second, false, false},
		{3 * time.Second, false, true}, // required
	} {
		if i == 7 {
			b.ForceCounts()
		}
		if got := b.CountsDue(start.Add(c.after), c.must); got != c.want {
			t.Errorf("status %d: counts %v", i, got)
		}
	}
}
