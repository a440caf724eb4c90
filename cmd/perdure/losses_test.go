package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// TestLosses: a trial in memory yields the same model as servers that are really killed, to the last bit. The study
// writes its files.
func TestLosses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	code, out, _ := invoke(t, "study", "losses", "--recovery", "checkpoint:4", "--recovery", "scar:4,1/2,priority",
		"--twins", "1", "--trials", "3", "--mean-clocks", "2", "--repeat", "1", "--out", dir, "--json", "--",
		"quadratic", "--servers", "4", "--workers", "2", "--shards", "8", "--clocks", "12", "--rows", "200")
	if code != 0 {
		t.Fatalf("exit code %d", code)
	}
	var r failurecost.Result
	must(t, json.Unmarshal([]byte(out), &r))
	if len(r.Trials) != 6 || len(r.Repeats) != 1 || !r.Repeats[0].Same || r.Schema != failurecost.Schema {
		t.Errorf("%d trials, repeated %+v", len(r.Trials), r.Repeats)
	}
	for _, file := range []string{"costs.json", "trials.csv", "costs.md", "costs.svg"} {
		if info, err := os.Stat(filepath.Join(dir, file)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestLossesRefused: a mistake in either half of the command line yields a one-line error.
func TestLossesRefused(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		"--lost 2":      {"--lost", "2", "--", "quadratic"},
		"scar:0,1/8":    {"--recovery", "scar:0,1/8", "--", "quadratic"},
		"condition 0":   {"--", "quadratic", "--condition", "0"},
		"--consistency": {"--", "quadratic", "--consistency", "asp"},
	} {
		wantRefused(t, 2, want, append([]string{"study", "losses"}, args...)...)
	}
}
