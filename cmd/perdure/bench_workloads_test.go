package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/bench"
)

// TestBenchWorkloads runs small jobs of all workloads, and compares the written results with the printed lines and with
// each other.
func TestBenchWorkloads(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	results, out := benched[bench.WorkloadsResult](t, "workloads", "--data", "synthetic:0.001", "--documents",
		"synthetic:500", "--rounds", "1",
		"--clocks", "2", "--workers", "1,2")
	lines := strings.Split(strings.TrimSpace(out), "\n")[1:]
	if len(results) != 16 || len(lines) != 16 {
		t.Fatalf("%d results, printed\n%s", len(results), out)
	}
	for i, r := range results {
		name, unit := []string{"mf", "als", "als-100", "softmax", "cnn", "logreg", "lda", "quadratic"}[i/2], "samples/s"
		if name == "mf" || strings.HasPrefix(name, "als") {
			unit = "ratings/s"
		} else if name == "logreg" {
			unit = "nonzeros/s"
		} else if name == "lda" {
			unit = "tokens/s"
		} else if name == "quadratic" {
			unit = "values/s"
		}
		if r.Workload != name || r.Unit != unit || r.Workers != 1+i%2 || r.Consistency != "essp:3" || r.Rounds != 1 {
			t.Errorf("line %d is %+v", i, r)
		}
		if r.Rate <= 0 || r.PlainRate <= 0 || r.Ratio != r.Rate/r.PlainRate || r.RatioMin != r.Ratio ||
			r.RatioMax != r.Ratio {
			t.Errorf("%s with %d workers: %g of %g is %g (%g to %g)", name, r.Workers, r.Rate, r.PlainRate, r.Ratio,
				r.RatioMin, r.RatioMax)
		}
		if !strings.HasPrefix(lines[i], name) || !strings.Contains(lines[i], unit) {
			t.Errorf("line %d is %q", i, lines[i])
		}
	}
	if !strings.Contains(results[0].Data, "synthetic") {
		t.Errorf("synthetic data are named %q", results[0].Data)
	}
}
