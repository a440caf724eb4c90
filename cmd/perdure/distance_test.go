package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/run/settings"
)

// TestDistance: far apart and over a narrow line, bsp trains the same model.
func TestDistance(t *testing.T) {
	t.Parallel()
	s, dir := trained(t, small("--delay", "5ms±2ms", "--bandwidth", "10MB")...)
	sameModel(t, s, one(t), dir)
	// Each clock takes four messages one after the other: update, acknowledgement,
	// tick and rows asked for, rows.
	if least := 60 * 4 * 3 * time.Millisecond; s.WallSeconds < least.Seconds() {
		t.Errorf("%v s for 60 clocks; with these delays it takes %v at least", s.WallSeconds, least)
	}

	// --from takes the run's distance, unless flags say otherwise.
	again := func(given ...string) settings.Run {
		a := settings.Asked{Distance: settings.Distance{Delay: "1ms", Bandwidth: "1GB"}, Given: map[string]bool{}}
		for _, g := range given {
			a.Given[g] = true
		}
		s, err := a.Repeat(filepath.Join(dir, "run.json"))
		must(t, err)
		return s
	}
	if s := again("from"); s.Delay != "5ms±2ms" || s.Bandwidth != "10MB" {
		t.Errorf("--from has the distance %+v", s.Distance)
	}
	if s := again("from", "delay", "bandwidth"); s.Delay != "1ms" || s.Bandwidth != "1GB" {
		t.Errorf("--from with flags has the distance %+v", s.Distance)
	}
}
