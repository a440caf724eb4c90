package coordinator

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestStreak checks that failures at one clock are counted no matter how long each process lived. Only a new highest
// clock is progress, since clocks are repeated after a rollback.
func TestStreak(t *testing.T) {
	for name, c := range map[string]struct {
		clocks []perdure.Clock
		want   int
	}{
		"at one clock":     {[]perdure.Clock{7, 7, 7}, 3},
		"before any clock": {[]perdure.Clock{0, 0}, 2},
		"progress":         {[]perdure.Clock{7, 7, 8}, 1},
		"after a rollback": {[]perdure.Clock{150, 100, 100, 150}, 4},
	} {
		s, got := streak{}, 0
		for _, clock := range c.clocks {
			got = s.count(clock)
		}
		if got != c.want {
			t.Errorf("%s: %d failures, want %d", name, got, c.want)
		}
	}
}

// TestShow checks that the output of a program that keeps failing in the same way is shown for the first and the last
// failure.
func TestShow(t *testing.T) {
	s := streak{}
	for i, c := range []struct {
		why  string
		last bool
		want bool
	}{{"a", false, true}, {"a", false, false}, {"b", false, true}, {"b", false, false}, {"b", true, true}} {
		s.count(0)
		if got := s.show(&wire.Exited{Detail: c.why, Output: "line\nline"}, c.last); (got != "") != c.want {
			t.Errorf("failure %d shows %q", i+1, got)
		}
	}
	if got := s.show(&wire.Exited{Detail: "why", Output: "perdure: why"}, true); got != "" {
		t.Errorf("output that is only the reason is shown again: %q", got)
	}
}

// TestTwice checks that one rejected claim does not count, since a killed start may have caused it, and that two do.
func TestTwice(t *testing.T) {
	for refused, want := range []string{"", "", "why"} {
		cs := claims{3: {rejections: refused, text: "why"}}
		if got := cs.claimConflict(3); got != want || cs.claimConflict(0) != "" {
			t.Errorf("after %d claims: %q, want %q", refused, got, want)
		}
	}
}
