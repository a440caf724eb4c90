package main

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

func TestParseDelay(t *testing.T) {
	for text, want := range map[string][2]time.Duration{
		"5ms":         {5 * time.Millisecond, 0},
		"0s":          {0, 0},
		"5ms±2ms":     {5 * time.Millisecond, 2 * time.Millisecond},
		"5ms+-2ms":    {5 * time.Millisecond, 2 * time.Millisecond},
		"100us±100us": {100 * time.Microsecond, 100 * time.Microsecond},
		"0.3s±200ms":  {300 * time.Millisecond, 200 * time.Millisecond},
	} {
		delay, spread, err := parseDelay(text)
		if err != nil || delay != want[0] || spread != want[1] {
			t.Errorf("%s: %v ± %v, %v", text, delay, spread, err)
		}
	}
}

func TestParseBandwidth(t *testing.T) {
	for text, want := range map[string]int64{
		"100KB": 100_000, "10MB": 10_000_000, "1.5GB": 1_500_000_000, "100000B": 100_000,
		"100KiB": 100 << 10, "12.5MiB": 12.5 * (1 << 20), "1GiB": 1 << 30, "1000GB": 1_000_000_000_000,
	} {
		if got, err := parseBandwidth(text); err != nil || got != want {
			t.Errorf("%s: %d, %v; want %d", text, got, err, want)
		}
	}
}

// TestDistance: far apart and over a narrow line, bsp trains the same model.
func TestDistance(t *testing.T) {
	s, dir := trained(t, small("--delay", "5ms±2ms", "--bandwidth", "10MB")...)
	if got, want := *s.ModelSHA256, one(t); got != want {
		t.Errorf("model %s, want %s\n%s", got, want, logs(dir))
	}
	// Each clock takes four messages one after the other: update, acknowledgement,
	// tick and rows asked for, rows.
	if least := 60 * 4 * 3 * time.Millisecond; s.WallSeconds < least.Seconds() {
		t.Errorf("%v s for 60 clocks; with these delays it takes %v at least", s.WallSeconds, least)
	}

	// --from takes the run's distance, unless flags say otherwise.
	again := func(given ...string) settings {
		cmd := trainCmd{jobFlags: jobFlags{Delay: "1ms", Bandwidth: "1GB", given: map[string]bool{}}, Workload: "softmax", From: filepath.Join(dir, "run.json")}
		for _, g := range given {
			cmd.given[g] = true
		}
		s, err := cmd.settings()
		must(t, err)
		return s
	}
	if s := again("from"); s.Delay != "5ms±2ms" || s.Bandwidth != "10MB" {
		t.Errorf("--from has the distance %+v", s.distance)
	}
	if s := again("from", "delay", "bandwidth"); s.Delay != "1ms" || s.Bandwidth != "1GB" {
		t.Errorf("--from with flags has the distance %+v", s.distance)
	}
}

// A run.json whose distance is not one is refused.
func TestDistanceOfSettings(t *testing.T) {
	_, err := (&settings{distance: distance{Delay: "soon"}}).network(wire.RoleServer, 0)
	if err == nil {
		t.Error("a delay of soon was accepted")
	}
	path := filepath.Join(t.TempDir(), "run.json")
	must(t, os.WriteFile(path, []byte(`{"delay":"5ms±2ms","bandwidth":"10MB"}`), 0o666))
	s, err := readSettings(path)
	must(t, err)
	m, err := s.model()
	must(t, err)
	if want := (transport.LinkModel{Delay: 5 * time.Millisecond, Spread: 2 * time.Millisecond, BytesPerSecond: 10e6}); m != want {
		t.Errorf("%+v, want %+v", m, want)
	}
}
