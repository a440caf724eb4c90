package main

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/run/settings"
)

// TestDistance: bsp trains the same model over a simulated network with long delays and low bandwidth.
func TestDistance(t *testing.T) {
	t.Parallel()
	s, dir := trained(t, small("--delay", "5ms±2ms", "--bandwidth", "10MB")...)
	sameModel(t, s, one(t), dir)
	// Each clock takes four messages one after another: the update, its acknowledgement, the tick with the request for
	// rows, and the rows.
	if least := 60 * 4 * 3 * time.Millisecond; s.WallSeconds < least.Seconds() {
		t.Errorf("60 clocks took %v s; with these delays the minimum is %v", s.WallSeconds, least)
	}

	// --from uses the run's delay and bandwidth unless flags override them.
	again := func(given ...string) settings.Run {
		a := settings.Flags{
			SimulatedNetwork: settings.SimulatedNetwork{Delay: "1ms", Bandwidth: "1GB"},
			Given:            map[string]bool{},
		}
		for _, g := range given {
			a.Given[g] = true
		}
		s, err := a.Repeat(filepath.Join(dir, "run.json"))
		must(t, err)
		return s
	}
	if s := again("from"); s.Delay != "5ms±2ms" || s.Bandwidth != "10MB" {
		t.Errorf("--from uses %+v", s.SimulatedNetwork)
	}
	if s := again("from", "delay", "bandwidth"); s.Delay != "1ms" || s.Bandwidth != "1GB" {
		t.Errorf("--from with flags uses %+v", s.SimulatedNetwork)
	}
}
