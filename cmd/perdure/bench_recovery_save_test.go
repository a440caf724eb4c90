package main

import "testing"

// TestBenchSave compares the written results with the printed lines, and their figures with each other.
func TestBenchSave(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	results, out := benched[recoveryLine](t, "recovery", "--measure", "save", "--rounds", "1", "--mb", "2")
	if len(results) != 2 || results[0].Recovery != "checkpoint:C,async" || results[1].Recovery != "checkpoint:C" {
		t.Fatalf("measured %+v", results)
	}
	for _, r := range results {
		wantPrinted(t, out, &r, "  pause %.1f ms", r.Save["pause_ms"])
		if r.MB != 2 || r.Save["train_ratio"] < 0 || r.Save["pause_ms"] < 0 || r.Save["calm_ms"] < 0 ||
			r.Save["copy_ms"] <= 0 || r.Save["mb_per_s"] <= 0 || r.Save["raw_mb_per_s"] <= 0 {
			t.Errorf("impossible figures: %+v", r)
		}
	}
}

// TestBenchRows compares the written cost of saving rows separately with the printed lines.
func TestBenchRows(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	results, out := benched[recoveryLine](t, "recovery", "--measure", "rows", "--rounds", "1", "--mb", "2")
	if len(results) != 4 || results[0].Recovery != "scar:C,1/8,priority" {
		t.Fatalf("measured %+v", results)
	}
	for _, r := range results {
		wantPrinted(t, out, &r, "  paused %.1f ms", r.Rows["stood_ms"])
		if r.MB != 2 || r.Rows["lost"] > 1 || r.Rows["mb"] <= 0 || r.Rows["pause_ms"] < 0 || r.Rows["copy_ms"] <= 0 {
			t.Errorf("impossible figures: %+v", r)
		}
	}
}
