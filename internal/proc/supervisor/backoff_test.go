package supervisor

import (
	"slices"
	"testing"
	"time"
)

// TestBackoff checks that the first process that ends, and those that ran for a while, are replaced immediately, and
// that the pause grows while processes end right after they start.
func TestBackoff(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct{ lived, want []time.Duration }{
		"killed now and then": {[]time.Duration{time.Second, time.Hour, 2 * time.Second}, []time.Duration{0, 0, 0}},
		"ends immediately": {
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
