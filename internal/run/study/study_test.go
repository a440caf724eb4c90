package study

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/study/failurecost"
)

// pretend makes this test binary act as the program that is run: it writes a summary to the directory that its
// arguments name, or fails.
const pretend = "STUDY_TEST_PRETEND"

func TestMain(m *testing.M) {
	if os.Getenv(pretend) == "" {
		os.Exit(m.Run())
	}
	args := strings.Join(os.Args, " ")
	if strings.Contains(args, "--recovery=hang") {
		<-context.Background().Done()
	}
	if strings.Contains(args, "--recovery=bad") {
		_, _ = io.WriteString(os.Stderr, "perdure: no server has shard 3\n")
		os.Exit(1)
	}
	dir := os.Args[slices.Index(os.Args, "--out")+1]
	seed := 0.0
	for _, a := range os.Args {
		_, _ = fmt.Sscanf(a, "--seed=%g", &seed)
	}
	if os.Args[1] == "study" {
		if strings.Contains(args, "--trials=0") || twinOf(uint64(seed)).Write(dir) != nil {
			os.Exit(1)
		}
		if strings.Contains(args, "--trials=7") { // as if repeated trials had ended differently
			os.Exit(1)
		}
		return
	}
	text := fmt.Sprintf(`{"wall_seconds": 2, "clocks": 10, "test_accuracy": %g, "updates_lost": 3, "clocks_redone": 0,
		"failures": [{"serving_again_after_ms": 1500}, {"detected_after_ms": 1, "at_seconds": 1.5}]}`, seed/10)
	series := "seconds,clock\n1,5\n2,10\n"
	if seed == 2 { // of another version
		series = "seconds,test_accuracy\n2,0.2\n"
	}
	if os.MkdirAll(dir, 0o777) != nil ||
		os.WriteFile(filepath.Join(dir, "summary.json"), []byte(text), 0o666) != nil ||
		os.WriteFile(filepath.Join(dir, "series.csv"), []byte(series), 0o666) != nil {
		os.Exit(1)
	}
}

// twinOf returns the result of a twin: two trials under each of two strategies. A trial under the second costs half the
// seed in clocks.
func twinOf(seed uint64) *failurecost.Result {
	r := &failurecost.Result{
		Schema: failurecost.Schema, Workload: "mf", Measure: failurecost.MeasureTrain, Clocks: 20,
		Strike: failurecost.StrikeBetween, Twins: []failurecost.Twin{{Seed: seed, Epsilon: 0.5, Reached: 18}},
	}
	for _, clock := range []int{5, 7} {
		r.Trials = append(r.Trials, failurecost.Trial{Strategy: "checkpoint:8", Lost: 0.5, Seed: seed, Cost: clock},
			failurecost.Trial{Strategy: "scar:8,1,priority", Lost: 0.5, Seed: seed, Cost: int(seed / 2)})
	}
	return r
}

var known = []string{"workload", "workers", "servers", "recovery", "clocks", "until", "sparse"}

// train rejects two settings that need more servers.
func train(args []string) (s settings.Run, err error) {
	s.Job.Slots, s.Job.Servers, s.Job.Clocks = 2, 1, 100
	for _, a := range args {
		switch {
		case a == "--servers=2":
			s.Job.Servers = 2
		case a == "--recovery=chain:2" && s.Job.Servers < 2:
			return s, fmt.Errorf("%w: a chain of 2 needs 2 servers", perdure.ErrUsage)
		case strings.HasPrefix(a, "--fault=kill:server:9"):
			return s, fmt.Errorf("%w: there is no server:9", perdure.ErrUsage)
		}
	}
	return s, nil
}

// kinds returns a kind of jobs and a kind of losses.
func kinds(keys []string) []Kind {
	return []Kind{
		{Name: KindTrain, Command: []string{"train"}, Keys: keys, Check: train},
		{
			Name: KindLosses, Command: []string{"study", "losses"}, Own: []string{"recovery", "trials"}, Keys: keys,
			Check: func(args []string) (settings.Run, error) { return train(args[slices.Index(args, "--")+1:]) },
		},
	}
}

func read(t *testing.T, text string, quick bool) (File, error) {
	t.Helper()
	v, err := settings.ParseDocument("a.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return parse(v, "a", kinds(known), quick)
}

func checked(t *testing.T, text string, quick bool) *Study {
	t.Helper()
	f, err := read(t, text, quick)
	if err != nil {
		t.Fatal(err)
	}
	s, err := f.Check()
	if err != nil {
		t.Fatal(err)
	}
	return s
}

const small = `
name: small
job: {workload: mf, workers: 2, servers: 1, sparse: true}
vary:
  recovery: [none, {recovery: chain:2, servers: 2}]
  clocks: [10, 20]
failures:
  calm: none
  one: kill:server:0@clock:5
seeds: [3, 7]
quick:
  job: {workers: 1}
  vary: {clocks: [2]}
  failures: {one: [kill:server:0@clock:1]}
  seeds: 1
`

// TestCells checks that every combination is a cell, and that choices override the job's settings.
func TestCells(t *testing.T) {
	s := checked(t, small, false)
	var names []string
	for _, c := range s.Cells {
		names = append(names, c.Name)
	}
	want := []string{
		"none_10_calm", "none_10_one", "none_20_calm", "none_20_one", "chain-2-servers=2_10_calm",
		"chain-2-servers=2_10_one", "chain-2-servers=2_20_calm", "chain-2-servers=2_20_one",
	}
	if !slices.Equal(names, want) {
		t.Errorf("cells %q", names)
	}
	args, err := s.Cells[5].Args(7)
	text := "mf --workers=2 --servers=2 --sparse=true --recovery=chain:2 --clocks=10 --seed=7 " +
		"--fault=kill:server:0@clock:5"
	if got := strings.Join(args, " "); err != nil || got != text {
		t.Errorf("%s, %v", got, err)
	}
	s = checked(t, small, true)
	args, err = s.Cells[1].Args(1)
	text = "mf --workers=1 --servers=1 --sparse=true --recovery=none --clocks=2 --seed=1 --fault=kill:server:0@clock:1"
	if got := strings.Join(args, " "); err != nil || got != text || len(s.Cells) != 4 || len(s.Seeds) != 1 {
		t.Errorf("quick: %s, %v, %d cells", got, err, len(s.Cells))
	}
}

const ofLosses = `
kind: losses
job: {recovery: [checkpoint:8, "scar:8,1"], workers: 2}
vary:
  problem:
    small: {workload: mf, clocks: 20}
    large: {workload: lda, clocks: 30, trials: 7, recovery: none}
seeds: [2, 4]
`

// TestLosses checks studies of losses: each seed is a twin, the command has its own flags before those of training, the
// twins' results are pooled, and finished twins are kept when the study continues.
func TestLosses(t *testing.T) {
	s := checked(t, ofLosses, false)
	args, err := s.Cells[0].Args(4)
	text := "--recovery=checkpoint:8 --recovery=scar:8,1 -- mf --workers=2 --clocks=20 --seed=4"
	if got := strings.Join(args, " "); err != nil || got != text || s.Cells[0].Name != "small" {
		t.Errorf("%s: %s, %v", s.Cells[0].Name, got, err)
	}
	args, _ = s.Cells[1].Args(2)
	text = "--recovery=none --trials=7 -- lda --workers=2 --clocks=30 --seed=2"
	if got := strings.Join(args, " "); got != text {
		t.Errorf("%s", got)
	}
	how := ExecuteOptions{Program: program(t, "one"), Folder: t.TempDir(), Screen: io.Discard, Parallel: 2}
	r, err := s.Execute(t.Context(), how)
	if err != nil || r.Missing != 0 || r.Kind != KindLosses || len(r.Cells) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	of := r.Cells[0].Losses
	// Costs are 5, 7, 5 and 7 under the first strategy, and 1, 1, 2 and 2 under the other.
	if len(of) != 2 || of[1].Trials != 4 || *of[1].Mean != 1.5 || math.Abs(*of[1].Saving-0.75) > 1e-9 {
		t.Errorf("%+v", of)
	}
	var screen, out strings.Builder
	how.Screen = &screen
	if r, err = s.Execute(t.Context(), how); err != nil || !strings.Contains(screen.String(), "4 of 4 runs are "+
		"already finished") {
		t.Errorf("%s, %v", screen.String(), err)
	}
	if err := r.Print(&out); err != nil || !strings.Contains(out.String(), "\nlarge: 2 twins\nSTRATEGY") {
		t.Errorf("%s, %v", out.String(), err)
	}
	if r.Cells[1].Losses[1].Trials != 4 || len(r.Cells[1].Failed) != 0 {
		t.Errorf("runs with exit code 1 and a result: %+v", r.Cells[1])
	}
	broken := checked(t, strings.Replace(ofLosses, "trials: 7", "trials: 0", 1), false)
	if _, err := broken.Execute(t.Context(), ExecuteOptions{
		Program: program(t, "one"), Folder: t.TempDir(), Screen: io.Discard,
	}); !errors.Is(err, ErrFailed) {
		t.Errorf("run without a result: %v", err)
	}
	// A twin with an unreadable result has failed.
	costs := filepath.Join(how.Folder, "small", "seed-2", "costs.json")
	if err := os.WriteFile(costs, []byte(`{"schema": 0}`), 0o666); err != nil {
		t.Fatal(err)
	}
	r, err = s.Execute(t.Context(), how)
	if err != nil || len(r.Cells[0].Failed) != 1 || r.Cells[0].Losses[0].Trials != 2 {
		t.Errorf("%+v, %v", r, err)
	}
}

func isUsage(t *testing.T, of string, err error, want string) {
	t.Helper()
	if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
		strings.Contains(err.Error(), "\n") {
		t.Errorf("%s: %v; want one line of usage with %q", of, err, want)
	}
}

// TestMistakes checks that errors in a file name the line.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"jobs: {}":                                    `a.yaml:1: unknown key "jobs"; did you mean job?`,
		"job:\n  wokers: 2":                           `a.yaml:2: unknown key "wokers"; did you mean workers?`,
		"job: {seed: 2}":                              "cannot set the seed",
		"job: {fault: x}":                             "cannot set faults",
		"vary: {recover: [a]}":                        `unknown key "recover"; did you mean recovery?`,
		"vary: {recovery: a}":                         "vary.recovery is the text \"a\"; write a list",
		"vary: {recovery: []}":                        "the list of recovery is empty",
		"name: x":                                     "the study has nothing to run",
		"vary: {recovery: [a, a]}":                    "a appears twice in the list of recovery",
		"name: a/b":                                   "valid directory name",
		"seeds: 0":                                    "seeds is 0; choose 1",
		"seeds: [1, 1]":                               "seed 1 is negative or appears twice",
		"timeout: soon":                               "timeout is soon; it must be a time",
		"impossible: maybe":                           "impossible is maybe; choose leave-out or refuse",
		"until: {figure: speed}":                      `unknown key "until"`,
		"failures: {a b: []}":                         "plan a b must be a valid directory name",
		"failures: {a: [burn:server:0@1s]}":           `unknown kind "burn"`,
		"failures: {a: {mean: 3s}}":                   "failures.a has neither draw",
		"failures: {a: {draw: weibull, men: 3s}}":     `unknown key "men"; did you mean mean?`,
		"failures: {a: {draw: weibull, shape: much}}": "failures.a.shape is the text",
		"failures: {a: {replay: none.csv}}":           "none.csv: no such file",
		"failures: {a: {replay: file.go}}":            "file.go: line 1: want milliseconds,add|remove,name",
		"quick: {name: b}":                            `unknown key "name"`,
		"quick: {kind: losses}":                       `unknown key "kind"`,
		"kind: loss":                                  "kind is loss; choose train or losses",
		"kind: losses\nfailures: {a: []}":             `a.yaml:2: unknown key "failures"`,
		"job: {trials: 3}":                            `unknown key "trials"`,
		"vary: {problem: {a: 3}}":                     "vary.problem.a is 3; write a map",
		"vary: {problem: {a: {rank: 3}}}":             `unknown key "rank"`,
	} {
		_, err := read(t, text, false)
		isUsage(t, text, err, want)
	}
	_, err := read(t, "seeds: 2", true)
	isUsage(t, "quick", err, "no section for --quick")
	for text, want := range map[string]string{
		"vary: {recovery: [none, chain:2]}":               "cell chain-2_none cannot run: a chain of 2 needs 2 servers",
		"failures: {a: [kill:server:9@1s]}":               "there is no server:9",
		"failures: {a: {draw: exponential}}":              "exponential needs mean",
		"vary: {until: [a:b, a-b]}":                       "two cells would have the directory a-b_none",
		"job: {recovery: chain:2}\nimpossible: leave-out": "no cell of the study can run",
	} {
		f, err := read(t, text, false)
		if err != nil {
			t.Fatal(text, err)
		}
		_, err = f.Check()
		isUsage(t, text, err, want)
	}
	s := checked(t, "vary: {recovery: [none, chain:2]}\nimpossible: leave-out", false)
	if len(s.Cells) != 1 || len(s.LeftOut) != 1 || s.LeftOut[0].Why != "a chain of 2 needs 2 servers" {
		t.Errorf("%d cells, left out %+v", len(s.Cells), s.LeftOut)
	}
}

// program returns this test binary as the program to run.
func program(t *testing.T, build string) Program {
	t.Helper()
	t.Setenv(pretend, "yes")
	t.Setenv("GORACE", "atexit_sleep_ms=0") // else each process sleeps for a second at its end
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := OpenProgram(self, "test")
	if err != nil {
		t.Fatal(err)
	}
	p.Build = build
	return p
}

// TestConduct checks that finished runs are not repeated, that failed runs are results but not trials, and that builds
// are not mixed.
func TestConduct(t *testing.T) {
	s := checked(t, "vary: {recovery: [none, bad]}\nseeds: 2", false)
	dir := t.TempDir()
	var screen strings.Builder
	how := ExecuteOptions{Program: program(t, "one"), Folder: dir, Screen: &screen}

	_, err := s.Execute(t.Context(), how)
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "no server has shard 3") {
		t.Errorf("a run that failed: %v", err)
	}
	how.KeepGoing = true
	r, err := s.Execute(t.Context(), how)
	if err != nil || r.Runs != 4 || r.Missing != 0 || len(r.Cells[0].Trials) != 2 || len(r.Cells[1].Failed) != 2 {
		t.Fatalf("%+v, %v", r, err)
	}
	if !strings.Contains(screen.String(), "   4/4  bad_none seed 2: failed: no server has shard 3\n") {
		t.Errorf("screen\n%s", &screen)
	}
	f := r.Cells[0].Figures
	if math.Abs(f["accuracy"].Median-.15) > 1e-9 || f["lost"].Mean != 3 ||
		f["faults"].Low != 2 || f["away"].High != 2 || f["goal-seconds"].Trials != 0 {
		t.Errorf("figures %+v", f)
	}

	// Everything is finished, so a missing program does not matter.
	done := screen.Len()
	again := how
	again.Screen = io.Discard
	again.Program.Path = filepath.Join(dir, "none")
	if r2, err := s.Execute(t.Context(), again); err != nil || screen.Len() != done || !equal(t, r, r2) {
		t.Errorf("again: %v, %q", err, screen.String()[done:])
	}
	if r2, err := s.Collect(dir); err != nil || !equal(t, r, r2) {
		t.Errorf("collected: %v", err)
	}
	_, err = s.Collect(t.TempDir())
	isUsage(t, "a folder without runs", err, "no run of the study has finished in ")
	again.Program.Build = "two"
	_, err = s.Execute(t.Context(), again)
	isUsage(t, "another build", err, "4 of the runs in "+dir+" were made by a different build of perdure (test "+
		"one; this is test two)")
	again.Mixed = true
	if _, err := s.Execute(t.Context(), again); err != nil {
		t.Error(err)
	}
	other := checked(t, "vary: {recovery: [none, bad]}\nseeds: 2\njob: {workers: 3}", false)
	_, err = other.Execute(t.Context(), how)
	if err != nil || strings.Count(screen.String()[done:], "none_none") != 2 {
		t.Errorf("other settings: %v, %q", err, screen.String()[done:])
	}
	done = screen.Len()
	must(t, os.RemoveAll(filepath.Join(dir, "none_none", "seed-2")))
	_, err = other.Execute(t.Context(), how)
	if err != nil || strings.Count(screen.String()[done:], "none_none seed 2") != 1 {
		t.Errorf("deleted directory: %v, %q", err, screen.String()[done:])
	}
}

// TestWrite checks that the files of a study contain every run, including failed ones, and all series.
func TestWrite(t *testing.T) {
	s, dir := checked(t, "vary: {recovery: [none, bad]}\nseeds: 2", false), t.TempDir()
	how := ExecuteOptions{Program: program(t, "one"), Folder: dir, Screen: io.Discard, KeepGoing: true}
	r, err := s.Execute(t.Context(), how)
	must(t, err)
	must(t, r.Write(dir))
	csv, err := os.ReadFile(filepath.Join(dir, "runs.csv"))
	if err != nil || strings.Count(string(csv), "\n") != 5 {
		t.Errorf("%s, %v", csv, err)
	}
	want := "cell,recovery,failures,seed,seconds,clock,test_accuracy\n" +
		"none_none,none,none,1,1,5,\nnone_none,none,none,1,2,10,\nnone_none,none,none,2,2,,0.2\n"
	if csv, err = os.ReadFile(filepath.Join(dir, "series.csv")); err != nil || string(csv) != want {
		t.Errorf("%s, %v", csv, err)
	}
	var table strings.Builder
	if err := r.Print(&table); err != nil || !strings.Contains(table.String(), "15.0% (10.0% to 20.0%)") ||
		!strings.Contains(table.String(), "0, 2 failed") {
		t.Errorf("%v\n%s", err, &table)
	}
}

// TestHold checks that only one process conducts a study in a directory.
func TestHold(t *testing.T) {
	s, dir := checked(t, "seeds: 1", false), t.TempDir()
	held, err := hold(dir)
	must(t, err)
	_, err = s.Execute(t.Context(), ExecuteOptions{Folder: dir, Screen: io.Discard})
	isUsage(t, "a study beside it", err, "another study is running in "+dir+" (pid ")
	must(t, held.Close())
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func equal(t *testing.T, a, b *Results) bool {
	t.Helper()
	x, err := json.Marshal(a)
	y, err2 := json.Marshal(b)
	return err == nil && err2 == nil && string(x) == string(y)
}

// TestLate checks that a run that exceeds the timeout has failed, and that an interrupted run starts again.
func TestLate(t *testing.T) {
	s := checked(t, "job: {recovery: hang}\nseeds: 1\ntimeout: 10ms", false)
	how := ExecuteOptions{Program: program(t, "one"), Folder: t.TempDir(), Screen: io.Discard}
	_, err := s.Execute(t.Context(), how)
	if !errors.Is(err, ErrFailed) || !strings.Contains(err.Error(), "it took longer than 10ms") {
		t.Error(err)
	}
	s.Timeout = time.Hour
	how.Folder = t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	r, err := s.Execute(ctx, how)
	if !errors.Is(err, context.DeadlineExceeded) || r.Missing != 1 {
		t.Errorf("interrupted: %v, %+v", err, r)
	}
}

// TestAtOnce checks that successive runs do not count as concurrent.
func TestAtOnce(t *testing.T) {
	at := func(from, to int64) *run {
		return &run{done: &runRecord{Ended: time.Unix(to, 0), Seconds: float64(to - from)}}
	}
	for want, runs := range [][]*run{
		nil, {at(3, 5), at(0, 3), at(5, 9)}, {at(0, 4), at(3, 6), at(5, 9)}, {at(0, 9), at(1, 3), at(2, 5), at(4, 6)},
	} {
		if got := maxConcurrent(runs); got != want {
			t.Errorf("%d concurrent runs, want %d", got, want)
		}
	}
}

func TestFigures(t *testing.T) {
	f := figureOf([]float64{1, 2, 4})
	// The 97.5% quantile of Student's t with 2 degrees of freedom is 4.3027; the deviation is 1.5275.
	if f.Median != 2 || f.Low != 1 || f.High != 4 || math.Abs(*f.HalfWidth-4.3027*1.5275/math.Sqrt(3)) > 1e-3 {
		t.Errorf("%+v, within %g", f, *f.HalfWidth)
	}
	if f := figureOf([]float64{5}); f.HalfWidth != nil || f.Mean != 5 {
		t.Errorf("%+v", f)
	}
}

// TestIdle checks that a machine counts as busy while its cores are in use.
func TestIdle(t *testing.T) {
	const before = "cpu  100 0 0 100 0 0 0 0 0 0\ncpu0 ..."
	isUsage(t, "busy", idle(before, "cpu  200 0 0 100 0 0 0 0 0 0\n"), "100% of this machine's cores")
	for _, after := range []string{"cpu  101 0 0 200 50 0 0 0 0 0\n", "", "x", before} {
		if err := idle(before, after); err != nil {
			t.Errorf("%q: %v", after, err)
		}
	}
}

// TestInit checks that the example is valid and that Init replaces no file.
func TestInit(t *testing.T) {
	path := filepath.Join(t.TempDir(), "study.yaml")
	if err := Init(path); err != nil {
		t.Fatal(err)
	}
	isUsage(t, "again", Init(path), "already exists")
	for _, quick := range []bool{false, true} {
		f, err := Read(path, kinds(append(known, "compute-ms", "consistency")), quick)
		if err != nil || len(f.Plans) != 2 || f.Timeout != 2*time.Minute {
			t.Errorf("quick %v: %+v, %v", quick, f, err)
		}
	}
}
