package failuredetector

import (
	"testing"

	"pgregory.net/rapid"
)

const patience = 15 // ticks: 1.5 s with a tick every 100 ms

// With heartbeats at every tick the limit is 5 ticks, and at most 12 if every other heartbeat may be a tick late.
// Irregular heartbeats raise it up to a bound.
func TestPulse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p heartbeatStats
		if got := p.limit(patience); got != patience {
			t.Fatalf("at first %d ticks are allowed, want %d", got, patience)
		}
		most := rapid.Int64Range(1, 100).Draw(t, "most") // ticks between two signs
		n := rapid.IntRange(1, 100).Draw(t, "intervals")
		for i := range n {
			p.record(rapid.Int64Range(1, most).Draw(t, "interval"), patience)
			got := p.limit(patience)
			if got < usual || got > 60 {
				t.Fatalf("%d ticks are allowed", got)
			}
			if most == 1 && i > 20 && got != usual || most == 2 && (got > patience || i > 20 && got > 12) {
				t.Fatalf("%d ticks are allowed after %d intervals of at most %d ticks", got, i+1, most)
			}
		}
		before := p
		if p.record(0, patience); p != before {
			t.Fatal("a second sign in one tick counts")
		}
	})
	var busy heartbeatStats
	for i := range 50 {
		busy.record([]int64{1, 7}[i%2], patience)
	}
	if got := busy.limit(patience); got < 3*7 {
		t.Fatalf("%d ticks are allowed, although every other interval is 7 ticks", got)
	}
}

// TestPulseLearns checks the state and the limit after each of a few signs of life. The mean interval and the mean
// deviation follow slowly; the longest interval is forgotten more slowly still.
func TestPulseLearns(t *testing.T) {
	var p heartbeatStats
	for i, c := range []struct{ ticks, interval, deviation, longest, allows int64 }{
		{1, 1808, 944, 0, 14},
		{1, 1710, 904, 1024, 13},
		{9, 2648, 2554, 9216, 30},
		{2, 2573, 2066, 9207, 26},
		{100, 15051, 26506, 102400, 60},
		{1, 13298, 23387, 102300, 60},
	} {
		p.record(c.ticks, patience)
		if got := (heartbeatStats{c.interval, c.deviation, c.longest}); p != got || p.limit(patience) != c.allows {
			t.Errorf("sign %d: %+v allows %d ticks, want %+v, %d", i, p, p.limit(patience), got, c.allows)
		}
	}
}

// After one late heartbeat the limit is higher for a minute, and then as low as before.
func TestPulseRemembers(t *testing.T) {
	var p heartbeatStats
	for range 100 {
		p.record(1, patience)
	}
	p.record(4, patience)
	for i := range 1000 {
		p.record(1, patience)
		switch got := p.limit(patience); {
		case i == 200 && got != 6, i == 999 && got != usual:
			t.Errorf("%d ticks are allowed %d signs after a late one", got, i+1)
		}
	}
}
