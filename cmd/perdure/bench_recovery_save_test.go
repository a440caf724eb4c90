package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/bench"
)

// TestBenchSave compares the written results with the printed lines, and their figures with each other.
func TestBenchSave(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	results, out := benched[bench.RecoveryResult](t, "recovery", "--measure", "save", "--rounds", "1", "--mb", "2")
	if len(results) != 2 || results[0].Recovery != "checkpoint:C,async" || results[1].Recovery != "checkpoint:C" {
		t.Fatalf("measured %+v", results)
	}
	for _, r := range results {
		if !strings.Contains(out, r.SaveLine()+"\n") {
			t.Errorf("%s is not printed:\n%s", r.SaveLine(), out)
		}
		if r.MB != 2 || r.Save.TrainRatio < 0 || r.Save.PauseMs < 0 || r.Save.CalmMs < 0 || r.Save.CopyMs <= 0 ||
			r.Save.MBPerS <= 0 || r.Save.RawMBPerS <= 0 {
			t.Errorf("impossible figures: %s", r.SaveLine())
		}
	}
}

// TestBenchRows compares the written cost of saving rows separately with the printed lines.
func TestBenchRows(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	results, out := benched[bench.RecoveryResult](t, "recovery", "--measure", "rows", "--rounds", "1", "--mb", "2")
	if len(results) != 4 || results[0].Recovery != "scar:C,1/8,priority" {
		t.Fatalf("measured %+v", results)
	}
	for _, r := range results {
		if !strings.Contains(out, r.RowsLine()+"\n") {
			t.Errorf("%s is not printed:\n%s", r.RowsLine(), out)
		}
		if r.MB != 2 || r.Rows.Lost > 1 || r.Rows.MB <= 0 || r.Rows.PauseMs < 0 || r.Rows.CopyMs <= 0 {
			t.Errorf("impossible figures: %s", r.RowsLine())
		}
	}
}
