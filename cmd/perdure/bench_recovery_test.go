package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/bench"
)

// TestBenchRecovery measures a little of everything, and compares the written results with the printed lines and with
// each other.
func TestBenchRecovery(t *testing.T) {
	t.Parallel()
	results, out := benched[bench.RecoveryResult](t, "recovery", "--recovery", "checkpoint:20", "--fault",
		"kill:server,kill:coordinator",
		"--rounds", "2", "--clocks", "10", "--batch", "8", "--mb", "3")
	var names []string
	for _, r := range results {
		names = append(names, r.Recovery+" "+r.Fault)
		if !strings.Contains(out, r.Line()+"\n") {
			t.Errorf("%s is not printed:\n%s", r.Line(), out)
		}
		if r.Rounds != 2 || r.Servers != 3 || r.Workers != 2 || r.Shards != 6 || r.MB != 3 {
			t.Errorf("measured with unexpected settings: %+v", r)
		}
		if r.DetectedMsMedian == nil || *r.DetectedMsMedian <= 0 || *r.LongestGetMsMedian <= 0 ||
			*r.LongestClockMsMedian <= 0 ||
			*r.ServingAgainMsMax != max(*r.LongestGetMsMax, *r.LongestClockMsMax) ||
			*r.ServingAgainMsMax < *r.ServingAgainMsMedian {
			t.Errorf("impossible figures: %s", r.Line())
		}
		if killed := r.Fault == "kill:server"; killed && *r.LongestGetMsMedian < *r.DetectedMsMedian {
			t.Errorf("a read of a dead server's shard waited %g ms, less than the time to detection: %s",
				*r.LongestGetMsMedian, r.Line())
		}
		if !(*r.TrainRatio > 0 && *r.TrainRatioMin <= *r.TrainRatio && *r.PushRatio > 0 &&
			*r.PushRatioMax >= *r.PushRatio) {
			t.Errorf("impossible ratios: train %g, push %g", *r.TrainRatio, *r.PushRatio)
		}
	}
	want := "checkpoint:20 kill:server,checkpoint:20 kill:coordinator"
	if got := strings.Join(names, ","); got != want {
		t.Errorf("measured %s, want %s", got, want)
	}
}
