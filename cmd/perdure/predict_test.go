package main

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// predicted runs perdure predict and returns its standard output as rows, and its standard error.
func predicted(t *testing.T, args ...string) (out [][]string, sent string) {
	t.Helper()
	code, stdout, stderr := invoke(t, append([]string{"predict"}, args...)...)
	if code != 0 {
		t.Fatalf("%v: exit code %d: %s", args, code, stderr)
	}
	out, err := csv.NewReader(strings.NewReader(stdout)).ReadAll()
	must(t, err)
	return out, stderr
}

// TestPredictRatings: users with similar taste are recommended items that they do not know, by name. The model's file
// is sufficient, with dense and with sparse tables.
func TestPredictRatings(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	data := filepath.Join(dir, "ratings.tsv")
	var b, pairs bytes.Buffer
	fmt.Fprintln(&b, "user\tfilm\tstars")
	for u := range 40 {
		for i := range 20 {
			if (u*7+i*3)%5 == 0 {
				continue // not rated
			}
			stars := 1
			if u%2 == i%2 {
				stars = 5
			}
			fmt.Fprintf(&b, "u%d\tfilm %d, part %d\t%d\n", u, i, i%2, stars)
		}
	}
	must(t, os.WriteFile(data, b.Bytes(), 0o644))
	fmt.Fprint(&pairs, "u3\tfilm 4, part 0\nu3\tfilm 5, part 1\n")
	wanted := filepath.Join(dir, "pairs.tsv")
	must(t, os.WriteFile(wanted, pairs.Bytes(), 0o644))
	for _, more := range [][]string{
		{"--solver", "als"}, {"--solver", "als", "--implicit", "5"}, {"--sparse", "--lr", "0.05"},
	} {
		sum, run := trained(t, append([]string{
			"train", "mf", "--quiet", "--data", data, "--rank", "4", "--clocks", "40", "--workers", "2",
			"--shards", "2", "--clock-fraction", "0.5",
		}, more...)...)
		lines, _ := predicted(t, run, "--user", "u3", "--user", "u8", "--best", "3", "--known", data)
		if len(lines) != 7 || strings.Join(lines[0], ",") != "user,item,prediction" || lines[1][0] != "u3" ||
			lines[4][0] != "u8" {
			t.Fatalf("%v: %q", more, lines)
		}
		for _, l := range lines[1:] {
			if strings.Contains(b.String(), l[0]+"\t"+l[1]+"\t") {
				t.Errorf("%v: %s is recommended %s, which they already rated", more, l[0], l[1])
			}
		}
		if more[0] != "--sparse" && len(more) == 2 { // the model has learned the parts
			if !strings.HasSuffix(lines[1][1], "part 1") || !strings.HasSuffix(lines[4][1], "part 0") {
				t.Errorf("%v: %q", more, lines)
			}
			if *sum.TestRMSE > 1 {
				t.Errorf("%v: RMSE %v", more, *sum.TestRMSE)
			}
		}
		rated, _ := predicted(t, filepath.Join(run, "model.safetensors"), "--pairs", wanted)
		if len(rated) != 3 || rated[1][1] != "film 4, part 0" {
			t.Fatalf("%v: %q", more, rated)
		}
		low, errLow := strconv.ParseFloat(rated[1][2], 64)
		high, errHigh := strconv.ParseFloat(rated[2][2], 64)
		must(t, errLow)
		must(t, errHigh)
		if len(more) == 2 && !(low < high-1) {
			t.Errorf("%v: %v and %v", more, low, high)
		}
	}
}

// TestPredictClasses: predictions have the accuracy that the run reported.
func TestPredictClasses(t *testing.T) {
	t.Parallel()
	sum, run := trained(t, small()...)
	args := []string{run}
	args = append(args, "--data", pictures)
	lines, sent := predicted(t, args...)
	right := 0
	for _, l := range lines[1:] {
		p, err := strconv.ParseFloat(l[2], 64)
		must(t, err)
		if !(p > 0.05 && p <= 1) {
			t.Fatalf("%q", l)
		}
		if l[1] == l[3] {
			right++
		}
	}
	if got := float64(right) / float64(len(lines)-1); math.Abs(got-*sum.TestAccuracy) > 1e-9 ||
		!strings.Contains(sent, fmt.Sprintf("accuracy %.4f", got)) {
		t.Errorf("accuracy %v, but the run reports %v; the output is %q", got, *sum.TestAccuracy, sent)
	}
	_, stdout, _ := invoke(t, append([]string{"predict", "--json"}, args...)...)
	var list []map[string]any
	must(t, json.Unmarshal([]byte(stdout), &list))
	if len(list) != len(lines)-1 || list[0]["example"] != 0.0 {
		t.Errorf("%d in JSON, %d in CSV", len(list), len(lines)-1)
	}
	cut := filepath.Join(t.TempDir(), "cut.safetensors")
	whole, err := os.ReadFile(filepath.Join(run, "model.safetensors"))
	must(t, err)
	must(t, os.WriteFile(cut, whole[:len(whole)-3], 0o644))
	wantRefused(t, exitError, "malformed", "predict", cut)
	wantRefused(t, exitUsage, "cannot read the model .*: no such file", "predict", filepath.Join(run, "none"))
	wantRefused(t, exitUsage, `this model's workload is "softmax"`, "predict", run, "--user", "3")
	_, dir := trained(t, factorise()...)
	wantRefused(t, exitUsage, "choose --user NAME", "predict", dir)
	wantRefused(t, exitUsage, `no user "ann"`, "predict", dir, "--user", "ann")
	wantRefused(t, exitUsage, "choose at least 1", "predict", dir, "--user", "1", "--best", "0")
	wantRefused(t, exitUsage, "apply only to the items of --user", "predict", dir, "--pairs", "x", "--best", "0")
	wantRefused(t, exitUsage, "remove --data", "predict", dir, "--data", "x")
	bad := filepath.Join(t.TempDir(), "pairs.csv")
	must(t, os.WriteFile(bad, []byte("1,2\n3\n"), 0o644))
	wantRefused(t, exitError, "line 2: the line has 1 column", "predict", dir, "--pairs", bad)
	must(t, os.WriteFile(bad, fmt.Appendf(nil, "1,2\n1,%d\n", 1<<23), 0o644))
	wantRefused(t, exitError, "line 2: the model has no item", "predict", dir, "--pairs", bad)
}
