package main

import (
	"fmt"
	"strings"
	"testing"
)

// recoveryLine has some figures of a line of perdure bench recovery.
type recoveryLine struct {
	Recovery string
	Fault    string
	Rounds   int
	Servers  int
	Workers  int
	Shards   int
	MB       int

	DetectedMs     *float64 `json:"detected_ms_median"`
	ServingAgainMs float64  `json:"serving_again_ms_median"`
	GetMs          float64  `json:"longest_get_ms_median"`
	ClockMs        float64  `json:"longest_clock_ms_median"`
	MaxServingMs   float64  `json:"serving_again_ms_max"`
	MaxGetMs       float64  `json:"longest_get_ms_max"`
	MaxClockMs     float64  `json:"longest_clock_ms_max"`

	TrainRatio float64 `json:"train_ratio"`
	TrainMin   float64 `json:"train_ratio_min"`
	PushRatio  float64 `json:"push_ratio"`
	PushMax    float64 `json:"push_ratio_max"`

	Save, Rows map[string]float64

	ReplayMB     float64  `json:"replay_mb"`
	ReplayMs     float64  `json:"replay_serving_ms"`
	EmptyMs      float64  `json:"replay_empty_ms"`
	BareMBPerS   float64  `json:"replay_bare_mb_per_s"`
	ReplayMBPerS *float64 `json:"replay_mb_per_s"`
}

// wantPrinted checks that a line with a figure was printed.
func wantPrinted(t *testing.T, out string, r *recoveryLine, format string, figure float64) {
	t.Helper()
	for line := range strings.Lines(out) {
		if strings.HasPrefix(line, r.Recovery+" ") && strings.Contains(line, r.Fault) &&
			strings.Contains(line, fmt.Sprintf(format, figure)) {
			return
		}
	}
	t.Errorf("no line of %s %s has %s:\n%s", r.Recovery, r.Fault, fmt.Sprintf(format, figure), out)
}

// TestBenchRecovery measures a little of everything, and compares the written results with the printed lines and with
// each other.
func TestBenchRecovery(t *testing.T) {
	t.Parallel()
	results, out := benched[recoveryLine](t, "recovery", "--recovery", "checkpoint:20", "--fault",
		"kill:server,kill:coordinator",
		"--rounds", "2", "--clocks", "10", "--batch", "8", "--mb", "3")
	var names []string
	for _, r := range results {
		names = append(names, r.Recovery+" "+r.Fault)
		wantPrinted(t, out, &r, "%.1f (", r.ServingAgainMs)
		if r.Rounds != 2 || r.Servers != 3 || r.Workers != 2 || r.Shards != 6 || r.MB != 3 {
			t.Errorf("measured with unexpected settings: %+v", r)
		}
		if r.DetectedMs == nil || *r.DetectedMs <= 0 || r.GetMs <= 0 || r.ClockMs <= 0 ||
			r.MaxServingMs != max(r.MaxGetMs, r.MaxClockMs) || r.MaxServingMs < r.ServingAgainMs {
			t.Errorf("impossible figures: %+v", r)
		} else if r.Fault == "kill:server" && r.GetMs < *r.DetectedMs {
			t.Errorf("a read of a dead server's shard waited %g ms, less than the time to detection: %g", r.GetMs,
				*r.DetectedMs)
		}
		if !(r.TrainRatio > 0 && r.TrainMin <= r.TrainRatio && r.PushRatio > 0 && r.PushMax >= r.PushRatio) {
			t.Errorf("impossible ratios: train %g, push %g", r.TrainRatio, r.PushRatio)
		}
	}
	want := "checkpoint:20 kill:server,checkpoint:20 kill:coordinator"
	if got := strings.Join(names, ","); got != want {
		t.Errorf("measured %s, want %s", got, want)
	}
}
