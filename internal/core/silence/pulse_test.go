package silence

import (
	"testing"

	"pgregory.net/rapid"
)

const patience = 15 // ticks: 1.5 s with a tick every 100 ms

// After heartbeats at every tick a silence of 10 ticks tells, and of 12 at most where
// every other one is a tick late; after irregular ones, more, to a bound.
func TestPulse(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var p pulse
		if got := p.allows(patience); got != patience {
			t.Fatalf("at first %d ticks are allowed, want %d", got, patience)
		}
		most := rapid.Int64Range(1, 100).Draw(t, "most") // ticks between two signs
		n := rapid.IntRange(1, 100).Draw(t, "intervals")
		for i := range n {
			p.heard(rapid.Int64Range(1, most).Draw(t, "interval"), patience)
			got := p.allows(patience)
			if got < 10 || got > 60 {
				t.Fatalf("%d ticks are allowed", got)
			}
			if most == 1 && i > 20 && got != 10 || most == 2 && (got > patience || i > 20 && got > 12) {
				t.Fatalf("%d ticks are allowed after %d intervals of %d ticks at most", got, i+1, most)
			}
		}
		before := p
		if p.heard(0, patience); p != before {
			t.Fatal("a second sign in one tick counts")
		}
	})
	var busy pulse
	for i := range 50 {
		busy.heard([]int64{1, 7}[i%2], patience)
	}
	if got := busy.allows(patience); got < 3*7 {
		t.Fatalf("%d ticks are allowed where every other interval has 7", got)
	}
}

// What is allowed after each of a few signs of life, to the 16th of a tick: by the usual
// interval and its deviation, which both follow slowly.
func TestPulseLearns(t *testing.T) {
	var p pulse
	for i, c := range []struct{ ticks, interval, deviation, allows int64 }{
		{1, 29, 15, 14},
		{1, 28, 15, 14},
		{9, 42, 40, 30},
		{2, 41, 33, 26},
		{100, 235, 414, 60},
		{1, 208, 366, 60},
	} {
		p.heard(c.ticks, patience)
		if got := (pulse{c.interval, c.deviation}); p != got || p.allows(patience) != c.allows {
			t.Errorf("sign %d: %+v allows %d ticks, want %+v, %d", i, p, p.allows(patience), got, c.allows)
		}
	}
}
