package main

import (
	"context"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// pretend is set in the environment of processes that this test starts as
// perdure: its value is a file that gets a line for each of them.
const pretend = "CONSISTENCY_STUDY_TEST_LOG"

func TestMain(m *testing.M) {
	if log := os.Getenv(pretend); log != "" {
		if err := pretendToTrain(log, os.Args[1:]); err != nil {
			fmt.Fprintln(os.Stderr, "perdure:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pretendToTrain is a perdure that writes what the study's models might do.
func pretendToTrain(log string, args []string) error {
	given := map[string]string{}
	for i := 2; i+1 < len(args); i++ {
		given[args[i]] = args[i+1]
	}
	number := func(flag string) float64 { v, _ := strconv.ParseFloat(given[flag], 64); return v }
	f, err := os.OpenFile(log, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Fprintln(f, strings.Join(args, " "))
	model, out, clocks := given["--consistency"], given["--out"], int(number("--clocks"))
	if err := os.MkdirAll(out, 0o777); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "run.json"), []byte(`{"version": "of a test"}`), 0o666); err != nil {
		return err
	}
	seed := uint64(number("--seed"))
	s := max(0, staleness(model))
	rng := rand.New(rand.NewPCG(seed, uint64(s)))
	// above 1: no more falling
	worse := number("--lr") * 4 * (1 + float64(s)*map[string]float64{"ssp": 1, "essp": .05}[kind(model)]/8)
	var series strings.Builder
	series.WriteString("clock,new_column,seconds,test_rmse,test_loss\n")
	ran := map[string]float64{"bsp": .03, "ssp": .024, "essp": .022, "asp": .02, "vap": .026}[kind(model)]
	every := int(number("--eval-every"))
	for c := 0; c <= clocks && every > 0; c += every {
		t := float64(c) / float64(clocks)
		loss := 4.2 + 1.3*math.Exp(-6*t) + .02*rng.Float64()
		if worse > 1 {
			loss += math.Exp(12*t*(worse-1)) - 1
		}
		if loss > 1e4 {
			if err := os.WriteFile(filepath.Join(out, "series.csv"), []byte(series.String()), 0o666); err != nil {
				return err
			}
			return errors.New("supervisor: a process of the job failed: worker:0: perdure: NaN or Inf in an update: " +
				"value 0 of row 0")
		}
		fmt.Fprintf(&series, "%d,,%g,%g,%g\n", c, float64(c)*ran, loss, loss)
	}
	differential := map[int]int64{-1: 1000}
	for d := -s - 1; d <= s && s > 0; d++ {
		differential[d] = 1 + int64(map[string]float64{
			"ssp":  1000,
			"essp": 9000 * math.Exp(-math.Abs(float64(d)+.8)),
		}[kind(model)]*(1+.2*rng.Float64()))
	}
	comm := map[string]float64{"ssp": 1}[kind(model)]
	summary, err := json.Marshal(map[string]any{
		"clocks": clocks, "wall_seconds": float64(clocks) * ran, "clock_differential": differential,
		"time_split": map[string]any{
			"compute": .6, "staleness": .25 - .2*comm, "communication": .15 + .2*comm,
			"workers": []map[string]any{
				{"slot": 0, "compute_s": 5, "staleness_s": 3, "communication_s": 2},
				{"slot": 1, "compute_s": 6, "staleness_s": 4, "communication_s": 0},
			},
		},
		"missing_updates": map[int]int64{0: 5, 3: 1}, "missing_bound": 4 * (2*s + 1),
	})
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(out, "series.csv"), []byte(series.String()), 0o666); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(out, "summary.json"), summary, 0o666)
}

// TestStudy does the whole study with a perdure that pretends, twice: the second
// time there is nothing to run, and the tables are the same.
func TestStudy(t *testing.T) {
	dir := t.TempDir()
	if keep := os.Getenv("CONSISTENCY_STUDY_TEST_KEEP"); keep != "" {
		dir = keep
	}
	log := filepath.Join(dir, "log")
	t.Setenv(pretend, log)
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each process sleeps for a second at its end
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	out := filepath.Join(dir, "page")
	args := []string{
		"-perdure", self, "-runs", filepath.Join(dir, "runs"), "-out", out, "-data", "ratings.csv",
		"-staleness", "0,3,15", "-split", "2", "-bounds", "1", "-seeds", "1,2", "-clocks", "120,80", "-bisections", "1",
	}
	ran := func() int {
		b, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(b), "\n")
	}
	if err := conduct(context.Background(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(filepath.Join(out, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"ratings.csv", "perdure of a test;", "rank 16", "(differentials.svg)", "(convergence-2-per-second.svg)",
		"(time-split.svg)", "(time-to-loss.svg)",
		"Under bsp every read has a differential of −1",
		"At every s above 0 the differentials of essp are closer together",
		"ssp does not just fall at s = 3, 15; essp falls at every s. So it is in the paper.", "`vap:1` | 2 of 2",
		"| `ssp:15` | ∞ | diverges 2/2 |",
	} {
		if !strings.Contains(string(page), want) {
			t.Errorf("the page does not say %q", want)
		}
	}
	for plot, has := range map[string][]string{
		differentials:              {"bsp", "s = 15", "clocks", "100%"},
		"convergence-1-per-clock":  {"s = 3", "clocks", "ssp diverges 2/2"},
		"convergence-2-per-second": {"s = 0", "seconds", "ssp diverges 2/2"},
		timeSplit:                  {"asp", "essp:2", "staleness", "60%"},
		timeToLoss:                 {"vap:1", "seconds", "clocks"},
	} {
		checkDrawing(t, filepath.Join(out, plot+".svg"), has...)
	}
	first, before := tablesOf(t, out), ran()
	if err := conduct(context.Background(), args, io.Discard); err != nil {
		t.Fatal(err)
	}
	if again := ran(); again != before {
		t.Errorf("%d runs, and %d more the second time; want none", before, again-before)
	}
	for name, rows := range tablesOf(t, out) {
		if !slices.EqualFunc(rows, first[name], slices.Equal[[]string]) {
			t.Errorf("%s is not the same the second time", name)
		}
	}
	// What has run is found again by what it was asked for, and by nothing else.
	if err := conduct(context.Background(), append(args, "-rank", "21", "-report"), io.Discard); err == nil ||
		!strings.Contains(err.Error(), "has not run") {
		t.Errorf("another rank: %v; want that it has not run", err)
	}
}

// checkDrawing reads an SVG as XML, and sees that it has lines and no places that
// are no numbers.
func checkDrawing(t *testing.T, file string, has ...string) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b)
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("%s: %v", file, err)
		}
	}
	if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") || strings.Count(text, "<") < 40 {
		t.Errorf("%s has places that are no numbers, or nothing in it", file)
	}
	for _, want := range has {
		if !strings.Contains(text, ">"+want+"</text>") {
			t.Errorf("%s does not say %q", file, want)
		}
	}
}

// tablesOf reads the CSV files of a folder, each with its header.
func tablesOf(t *testing.T, folder string) map[string][][]string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, "*.csv"))
	if err != nil || len(files) != 6 {
		t.Fatalf("%d tables, %v; want 6", len(files), err)
	}
	tables := map[string][][]string{}
	for _, file := range files {
		f, err := os.Open(file)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		if tables[filepath.Base(file)], err = csv.NewReader(f).ReadAll(); err != nil {
			t.Fatalf("%s: %v", file, err) // also where rows are not of one length
		}
	}
	return tables
}

// TestKeptEnd: which ends of a run without a summary are results.
func TestKeptEnd(t *testing.T) {
	for _, c := range []struct {
		name, output string
		late         bool
		want, end    string // of an error, or what is kept
	}{
		{"diverged", "perdure: worker:0: NaN or Inf in an update\nlast line\n", false, "", diverged},
		{"diverged, and then hung", "perdure: worker:0: NaN or Inf in an update\n", true, "", diverged},
		{"hung", "perdure: interrupted\n", true, "", timedOut},
		{"a wrong flag", "usage\nperdure: unknown flag --rank\n", false, "unknown flag --rank", ""},
	} {
		folder := t.TempDir()
		err := (&runner{}).keepEnd(folder, run{Model: "bsp"}, c.late, c.output)
		kept, _ := os.ReadFile(filepath.Join(folder, endFile))
		end, _, _ := strings.Cut(string(kept), "\n")
		if end != c.end || (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: kept %q, %v; want %q, %q", c.name, kept, err, c.end, c.want)
		}
	}
}

// TestStopped: a failure that says nothing about the model ends the study.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv(pretend, filepath.Join(dir, "no", "log"))
	err = conduct(context.Background(), []string{
		"-perdure", self, "-quick", "-runs", filepath.Join(dir, "runs"),
		"-out", dir,
	}, io.Discard)
	if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), "no such file") {
		t.Errorf("%v; want what perdure said, in one line", err)
	}
}
