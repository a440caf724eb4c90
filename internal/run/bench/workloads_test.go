package bench

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
)

// asTrain makes this test binary act as a perdure train that reports a duration of two seconds.
const asTrain = "PERDURE_TEST_AS_TRAIN"

// runAsTrain is the process that asTrain selects.
func runAsTrain() error {
	if os.Getenv(asTrain) == "fails" {
		return errors.New("perdure: no server left")
	}
	out := os.Args[slices.Index(os.Args, "--out")+1]
	events := []byte(`{"seconds":0,"kind":"begin"}` + "\n" + `{"seconds":2,"clock":20,"kind":"complete"}` + "\n")
	return errors.Join(os.MkdirAll(out, 0o777), os.WriteFile(filepath.Join(out, "events.jsonl"), events, 0o666))
}

func workloadsOptions(file string) WorkloadsOptions {
	return WorkloadsOptions{
		Workload: []string{"softmax"}, Workers: []int{1, 3}, Consistency: "bsp", Recovery: "none", Shards: 2, Rounds: 2,
		Clocks: 2, JSON: file, Program: os.Args[0],
	}
}

// TestRunWorkloads checks that the rate is the work of all workers divided by the recorded time, next to the rate of
// the plain loop.
func TestRunWorkloads(t *testing.T) {
	t.Setenv(asTrain, "works")
	var out bytes.Buffer
	file := filepath.Join(t.TempDir(), "bench.json")
	if err := RunWorkloads(t.Context(), &out, workloadsOptions(file)); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var results []WorkloadsResult
	if err := json.Unmarshal(text, &results); err != nil || len(results) != 2 ||
		strings.Count(out.String(), "\n") != 3 {
		t.Fatalf("%v: %s\n%s", err, text, &out)
	}
	for i, workers := range []int{1, 3} {
		r := results[i]
		if want := float64(64 * workers * 200 / 2); r.Workers != workers || r.Rate != want || r.PlainRate <= 0 ||
			r.RatioMin > r.Ratio || r.Ratio > r.RatioMax {
			t.Errorf("%+v; want a rate of %g", r, want)
		}
	}
}

// TestWorkloadsRefuse checks that invalid options are rejected in advance, and that the error of a failed job is
// returned.
func TestWorkloadsRefuse(t *testing.T) {
	t.Setenv(asTrain, "fails")
	var out bytes.Buffer
	for want, change := range map[string]func(*WorkloadsOptions){
		"unknown --workload":  func(o *WorkloadsOptions) { o.Workload = []string{"tetris"} },
		"number of rounds 0":  func(o *WorkloadsOptions) { o.Rounds = 0 },
		"number of workers 0": func(o *WorkloadsOptions) { o.Workers = []int{0} },
		"is a directory":      func(o *WorkloadsOptions) { o.JSON = t.TempDir() },
	} {
		o := workloadsOptions("")
		change(&o)
		if err := RunWorkloads(t.Context(), &out, o); !errors.Is(err, perdure.ErrUsage) ||
			!strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
	if err := RunWorkloads(t.Context(), &out, workloadsOptions("")); err == nil ||
		err.Error() != "bench: perdure train softmax: no server left" {
		t.Errorf("failed job: %v", err)
	}
}
