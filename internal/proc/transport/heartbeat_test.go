package transport_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/proc/transport"
)

// One heartbeat of each few says something, also after a word that came out of turn.
func TestRests(t *testing.T) {
	var b transport.Heartbeat
	for i, want := range []bool{true, true, false, true} {
		if i == 3 {
			b.Speaks(nil)
		}
		if got := b.Rests(3); got != want {
			t.Errorf("heartbeat %d rests: %v", i, got)
		}
	}
	for _, per := range []int{0, 1} {
		if b.Speaks(nil); b.Rests(per) {
			t.Errorf("it rests where one of %d says something", per)
		}
	}
}

// All is told anew on another connection.
func TestSpeaks(t *testing.T) {
	var b transport.Heartbeat
	first, second := new(int), new(int)
	for i, c := range []struct {
		on   any
		want bool
	}{{first, true}, {first, false}, {second, true}, {first, true}} {
		if got := b.Speaks(c.on); got != c.want {
			t.Errorf("word %d: anew %v", i, got)
		}
	}
}

// What is only counted is told once a second, and when it must be.
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
		{3 * time.Second, false, true}, // told anew
	} {
		if i == 7 {
			b.Recount()
		}
		if got := b.Counts(start.Add(c.after), c.must); got != c.want {
			t.Errorf("word %d: counts %v", i, got)
		}
	}
}
