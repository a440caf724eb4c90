package main

import (
	"math"
	"testing"
)

// TestBenchReplay compares the written result with the printed line, with the amount of data pushed, and with itself.
func TestBenchReplay(t *testing.T) {
	t.Parallel()
	results, out := benched[recoveryLine](t, "recovery", "--measure", "replay", "--rounds", "1", "--mb",
		"6", "--shards", "2")
	if len(results) != 1 {
		t.Fatalf("measured %+v", results)
	}
	r := results[0]
	wantPrinted(t, out, &r, " %.1f ms (", r.ReplayMs)
	if r.Recovery != "stateless" || r.Servers != 1 || r.Workers != 1 || r.Shards != 2 || r.MB != 6 {
		t.Errorf("measured with other settings: %+v", r)
	}
	if pushed := 2 * 4.194304; r.ReplayMB < pushed || r.ReplayMB > 1.01*pushed {
		t.Errorf("%g MB were read back, %g MB pushed", r.ReplayMB, pushed)
	}
	if r.EmptyMs <= 0 || r.ReplayMs <= 0 || r.BareMBPerS <= 0 {
		t.Errorf("impossible figures: %+v", r)
	}
	switch longer := r.ReplayMs - r.EmptyMs; {
	case longer > 0:
		if want := r.ReplayMB / longer * 1e3; r.ReplayMBPerS == nil || math.Abs(*r.ReplayMBPerS-want) > 1e-6*want {
			t.Errorf("want %g MB/s: %+v", want, r)
		}
	case r.ReplayMBPerS != nil:
		t.Errorf("a rate without a measurable time: %+v", r)
	}
}
