package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/bench/strategies"
)

// TestBenchSave holds what is written against what is printed, and against itself.
func TestBenchSave(t *testing.T) {
	t.Parallel()
	results, out := benched[strategies.Result](t, "recovery", "--measure", "save", "--rounds", "1", "--mb", "2")
	if len(results) != 2 || results[0].Recovery != "checkpoint:C,async" || results[1].Recovery != "checkpoint:C" {
		t.Fatalf("measured %+v", results)
	}
	for _, r := range results {
		if !strings.Contains(out, r.SaveLine()+"\n") {
			t.Errorf("%s is not printed:\n%s", r.SaveLine(), out)
		}
		if r.MB != 2 || *r.SaveTrainRatio < 0 || *r.SavePauseMs < 0 || *r.SaveCalmMs < 0 || *r.SaveCopyMs <= 0 ||
			*r.SaveMBPerS <= 0 || *r.SaveRawMBPerS <= 0 {
			t.Errorf("impossible figures: %s", r.SaveLine())
		}
	}
}
