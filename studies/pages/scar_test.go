package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/study"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// ofLosses returns the results of a study with two twins for each problem. In one problem full recovery costs 8 and 12
// clocks and partial recovery 2 and 4, or 3 and 5. In another, most trials of partial recovery never reach ε. One
// problem has not run yet.
func ofLosses(t testing.TB) (dir string, r *study.Results) {
	t.Helper()
	dir = t.TempDir()
	r = &study.Results{Name: "scar", Kind: study.KindLosses, Axes: []string{"problem"}, Runs: 8, Missing: 2}
	for _, problem := range []string{"quadratic", "mnist", "als-jester", "quadratic-bytes"} {
		c := study.CellResult{Name: problem, Choices: []string{problem}}
		for seed := range uint64(2) {
			if problem == "als-jester" {
				continue
			}
			of := &failurecost.Result{
				Schema: failurecost.Schema, Measure: failurecost.MeasureTrain,
				Bytes:   map[string]int64{eighthSaves: 2e6},
				Twins:   []failurecost.Twin{{Seed: seed, Epsilon: 0.25 + float64(seed), Reached: 9}},
				Repeats: []failurecost.Repeat{{Same: true, Tries: 1 + int(seed)}},
			}
			for i := range 2 {
				trial := failurecost.Trial{Strategy: "checkpoint:16", Lost: 0.5, Seed: seed, Cost: 8 + 4*i}
				of.Trials = append(of.Trials, trial)
				trial.Strategy, trial.Cost = eighthSaves, 2+2*i+int(seed)
				trial.Failures = []failurecost.Failure{{Clock: perdure.Clock(5 + i)}}
				trial.Censored = problem == "mnist" && (seed > 0 || i > 0)
				of.Trials = append(of.Trials, trial)
			}
			must(t, of.Write(filepath.Join(dir, problem, fmt.Sprintf("seed-%d", seed))))
			c.Trials = append(c.Trials, study.Trial{Seed: seed})
		}
		r.Cells = append(r.Cells, c)
	}
	return dir, r
}

// TestScar checks that the trials of all twins are pooled, that censored trials are reported instead of averaged, and
// that the page names the problem that has not run yet.
func TestScar(t *testing.T) {
	s, err := open(ofLosses(t))
	must(t, err)
	to := t.TempDir()
	must(t, s.write(to))
	b, err := os.ReadFile(filepath.Join(to, "README.md"))
	must(t, err)
	page := strings.Join(strings.Fields(string(b)), " ")
	for _, want := range []string{
		"is 65% on 1.",
		"| quadratic | – | 65% [60%, 70%] | not reproduced |",
		"| softmax on MNIST | – | –, 3 of 4 never reach ε | not reproduced |",
		"| als on Jester | – | – | not comparable |",
		"6 trials were repeated with real servers, killed in the middle of a clock: 6 ended with the trial's model " +
			"to the last bit, 3 of them at the first attempt.",
		"ε of the twins: 0.25 and 1.25. Measure: the training loss.",
		"| `scar:16,1/8,priority` | 4.00 | 3.5 [3.0, 4.0] | 65% [60%, 70%] |",
		"| `scar:16,1/8,priority` | 4.00 | 2.0 [−∞, ∞], 3 of 4 censored |",
		"## als on Jester Not run yet. ## lda", "](quadratic.svg) [All trials](quadratic.csv).", "](bytes.svg)",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, b)
		}
	}
	if b, err := os.ReadFile(filepath.Join(to, "quadratic.csv")); err != nil || strings.Count(string(b), "\n") != 9 {
		t.Errorf("%v, %s", err, b)
	}
	if _, err := os.Stat(filepath.Join(to, "als-jester.svg")); err == nil {
		t.Error("a problem without runs is drawn")
	}
	drawn, err := os.ReadFile(filepath.Join(to, "bytes.svg"))
	if err != nil || !strings.Contains(string(drawn), ">scar:C,1/8,priority<") ||
		strings.Contains(string(drawn), ">covtype") {
		t.Errorf("%v, %s", err, drawn)
	}
	c := s.cell(labelSet{"problem": "quadratic"})
	for part, want := range map[float64]string{
		0.65: reproduced, 0.7: "inconclusive", 0.71: notReproduced,
	} {
		if got := c.claim(eighthSaves, part); got != want {
			t.Errorf("a claim of %v: %s, want %s", part, got, want)
		}
	}
}
