package supervisor

import (
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// TestHopeless: a program that fails again and again is given up, and one that works in between is not.
func TestHopeless(t *testing.T) {
	for name, c := range map[string]struct {
		lived []time.Duration
		want  bool
		clock perdure.Clock // by how many clocks the job goes on between two
	}{
		"now and then":  {[]time.Duration{0, 0, 0, 0, time.Minute, 0, 0, 0}, false, 0},
		"always":        {[]time.Duration{0, time.Second, 0, 9 * time.Second, 0}, true, 0},
		"not for long":  {[]time.Duration{0, 0, 0, 0}, false, 0},
		"goes on":       {[]time.Duration{0, 0, 0, 0, 0, 0, 0}, false, 1},
		"after its job": {[]time.Duration{time.Hour, 0, 0, 0, 0}, true, 0},
	} {
		var b Backoff
		got := false
		for i, lived := range c.lived {
			got = b.hopeless(lived, perdure.Clock(i)*c.clock)
		}
		if got != c.want {
			t.Errorf("%s: %v", name, got)
		}
	}
}

// TestBackoff: the first process that ends is replaced at once, and so is one that has
// lived for a while; of those that end as soon as they begin each waits longer.
func TestBackoff(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct{ lived, want []time.Duration }{
		"killed now and then": {[]time.Duration{time.Second, time.Hour, 2 * time.Second}, []time.Duration{0, 0, 0}},
		"ends at once": {
			[]time.Duration{0, ms, 999 * ms, 0, 0, 0, 0, 0, 0},
			[]time.Duration{0, 100 * ms, 200 * ms, 400 * ms, 800 * ms, 1600 * ms, 3200 * ms, 5000 * ms, 5000 * ms},
		},
		"mended": {[]time.Duration{0, 0, 0, time.Minute, 0}, []time.Duration{0, 100 * ms, 200 * ms, 0, 100 * ms}},
	} {
		var b Backoff
		var got []time.Duration
		for _, lived := range c.lived {
			got = append(got, b.Next(lived))
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: pauses %v, want %v", name, got, c.want)
		}
	}
}
