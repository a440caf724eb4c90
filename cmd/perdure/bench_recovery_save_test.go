package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/bench/strategies"
)

// TestBenchSave holds what is written against what is printed, and against itself.
func TestBenchSave(t *testing.T) {
	left := cleanBench(t)
	file := filepath.Join(t.TempDir(), "bench.json")
	code, out, errs := invoke(t, "bench", "recovery", "--measure", "save", "--rounds", "1", "--mb", "2", "--json", file)
	if code != 0 || errs != "" {
		t.Fatalf("exit code %d: %s%s", code, out, errs)
	}
	left()
	text, err := os.ReadFile(file)
	must(t, err)
	var results []strategies.Result
	must(t, json.Unmarshal(text, &results))
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
