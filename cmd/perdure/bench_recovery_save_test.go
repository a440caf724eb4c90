package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestPauses: a clock that was under way at the cut, and that the checkpoint held up, is a
// pause after the cut, and none of before it.
func TestPauses(t *testing.T) {
	begin := time.Unix(1000, 0)
	at := func(ms int) time.Time { return begin.Add(time.Duration(ms) * time.Millisecond) }
	laps := []lap{{0, at(0), at(7)}, {1, at(7), at(10)}, {0, at(8), at(90)}, {1, at(10), at(12)}, {1, at(60), at(65)}}
	for what, c := range map[string]struct{ got, want time.Duration }{
		"before the cut":               {longestEnded(laps, at(1), at(10)), 6 * time.Millisecond},
		"after it":                     {longestBegun(laps, at(10), at(50)), 80 * time.Millisecond},
		"after it, as before":          {longestBegun(laps[3:], at(10), at(50)), 2 * time.Millisecond},
		"where nothing ended":          {longestEnded(laps, at(10), at(11)), 0},
		"where all began later":        {longestBegun(laps[4:], at(10), at(50)), 0},
		"one that began before all is": {longestEnded(laps[2:3], at(20), at(90)), 70 * time.Millisecond},
	} {
		if c.got != c.want {
			t.Errorf("%s: %v, want %v", what, c.got, c.want)
		}
	}
}

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
	var results []recoveryResult
	must(t, json.Unmarshal(text, &results))
	if len(results) != 2 || results[0].Recovery != "checkpoint:C,async" || results[1].Recovery != "checkpoint:C" {
		t.Fatalf("measured %+v", results)
	}
	for _, r := range results {
		if !strings.Contains(out, r.saveLine()+"\n") {
			t.Errorf("%s is not printed:\n%s", r.saveLine(), out)
		}
		if r.MB != 2 || *r.SaveTrainRatio < 0 || *r.SavePauseMs < 0 || *r.SaveCalmMs < 0 || *r.SaveCopyMs <= 0 || *r.SaveMBPerS <= 0 || *r.SaveRawMBPerS <= 0 {
			t.Errorf("impossible figures: %s", r.saveLine())
		}
	}
}
