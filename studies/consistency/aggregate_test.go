package main

import (
	"errors"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/study"
)

func TestOutcome(t *testing.T) {
	line := func(step int, losses ...float64) (points []point) {
		for i, l := range losses {
			points = append(points, point{Clock: i * step, Seconds: float64(i), Loss: l})
		}
		return points
	}
	for _, c := range []struct {
		name   string
		points []point
		clocks int
		want   string
	}{
		{"down", line(1, 5, 4, 3, 3, 3, 3), 5, falls},
		{"a little above its least", line(1, 5, 3, 3.1, 3.1, 3.1, 3.1), 5, falls},
		{"up again", line(1, 5, 3, 3.2, 3.2, 3.2, 3.2), 5, rises},
		{"up for one evaluation, at its end", line(1, 5, 3, 3, 3, 3, 3.2), 5, falls},
		{"far up for one evaluation", line(1, 5, 3, 3.4, 3, 3, 3, 3), 6, swings},
		{"above the first", line(1, 5, 3, 5.1, 5.1, 5.1, 5.1), 5, diverged},
		{"no loss towards the end", line(1, 5, 4, 3, 2), 100, diverged},
		{"the last evaluation before the end", line(1, 5, 3, 3, 3, 3, 3), 7, falls},
		{"none", nil, 10, diverged},
	} {
		if got := outcome(c.points, c.clocks); got != c.want {
			t.Errorf("%s: %s, want %s", c.name, got, c.want)
		}
	}
}

func TestMerge(t *testing.T) {
	curve := merge([]*result{
		{Outcome: falls, Points: []point{{0, 0, 9}, {10, 1, 5}, {20, 2, 3}}},
		{Outcome: falls, Points: []point{{0, 0, 7}, {20, 4, 4}}}, // not evaluated at 10
		{Outcome: diverged, Points: []point{{0, 0, 8}, {10, 3, 80}}},
	})
	want := []curvePoint{
		{0, 0, study.Spread{Mid: 8, Low: 7, High: 9}},
		{10, 2, study.Spread{Mid: 42.5, Low: 5, High: 80}},
		{20, 3, study.Spread{Mid: 4, Low: 3, High: math.Inf(1)}},
	}
	if !slices.Equal(curve, want) {
		t.Errorf("%v, want %v", curve, want)
	}
}

func TestReach(t *testing.T) {
	points := []point{{0, 0, 9}, {10, 1, 5}, {20, 2, 3}, {30, 3, 4}}
	if at, ok := reach(points, 5); !ok || at.Clock != 10 {
		t.Errorf("5 is reached at %v, %v; want clock 10", at, ok)
	}
	if at, ok := reach(points, 2.9); ok {
		t.Errorf("2.9 is reached at %v; it never is", at)
	}
}

func TestHistogram(t *testing.T) {
	h := shares(map[int]int64{-3: 1, -1: 6, 0: 0, 2: 3})
	if want := (histogram{-3: .1, -1: .6, 2: .3}); !maps.Equal(h, want) {
		t.Errorf("%v, want %v", h, want)
	}
	mean, deviation := h.moments()
	if math.Abs(mean+.3) > 1e-12 || math.Abs(deviation*deviation-2.61) > 1e-12 {
		t.Errorf("mean %v, deviation %v; want -0.3 and √2.61", mean, deviation)
	}
	for _, c := range []struct {
		outside   float64
		low, high int
	}{{0, -3, 2}, {.1, -1, 2}, {.35, -1, -1}, {1, 2, 2}} {
		if low, high := h.bounds(c.outside); low != c.low || high != c.high {
			t.Errorf("all but %v: %d to %d, want %d to %d", c.outside, low, high, c.low, c.high)
		}
	}
}

// TestLargest searches for a number that is known, from below and from above.
func TestLargest(t *testing.T) {
	for _, start := range []float64{.001, .7, 64} {
		tries := 0
		got, err := largest(start, 4, func(v float64) (bool, error) { tries++; return v <= .8, nil })
		if err != nil || got > .8 || got < .8/math.Pow(2, 1./16)*.99 || tries > 30 {
			t.Errorf("from %v: %v after %d tries, %v; want 0.8 or a little less", start, got, tries, err)
		}
	}
	broken := errors.New("broken")
	if _, err := largest(1, 2, func(float64) (bool, error) { return true, broken }); !errors.Is(err, broken) {
		t.Errorf("%v, want the error of the run", err)
	}
	if _, err := largest(1, 2, func(float64) (bool, error) { return true, nil }); err == nil {
		t.Error("all stand, and there is a largest")
	}
}

const series = `loss_of_others,seconds,train_rmse,clock,test_rmse
,0.1,5,1,
7,0.5,4.5,5,4.4
7,0.6,4.5,6,
,1,4,10,NaN
,1.5,3,15,3.9
,1.6,3,15,3.8
`

func TestParseSeries(t *testing.T) {
	for _, c := range []struct {
		name, text string
		columns    []string
		column     string
		points     []point
	}{
		{
			"the first that is there, where a test was", series,
			[]string{"absent", "train_rmse"},
			"train_rmse",
			[]point{{5, .5, 4.5}, {10, 1, 4}, {15, 1.5, 3}},
		},
		{"what is finite", series, []string{"test_rmse"}, "test_rmse", []point{{5, .5, 4.4}, {15, 1.5, 3.9}}},
		{"none", series, []string{"absent"}, "", nil},
		{
			"no tests at all", "clock,seconds,train_loss\n1,0.5,3\n2,1,\n3,1.5,2\n",
			[]string{"train_loss"},
			"train_loss",
			[]point{{1, .5, 3}, {3, 1.5, 2}},
		},
		{"an empty file", "", []string{"train_loss"}, "", nil},
	} {
		column, points, err := parseSeries(strings.NewReader(c.text), c.columns)
		if err != nil || column != c.column || !slices.Equal(points, c.points) {
			t.Errorf("%s: %q %v, %v; want %q %v", c.name, column, points, err, c.column, c.points)
		}
	}
	for _, text := range []string{
		"a,b\n1,2\n", "clock,seconds,test_loss\nx,1,2\n", "clock,seconds,test_loss\n1,x,2\n",
		"clock,seconds\n1\n",
	} {
		if _, points, err := parseSeries(strings.NewReader(text), []string{"test_loss"}); err == nil {
			t.Errorf("%q is read as %v", text, points)
		}
	}
}

func TestReadResult(t *testing.T) {
	folder := t.TempDir()
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(folder, name), []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	r := run{Model: "ssp:3", Clocks: 15}
	if _, err := readResult(folder, r, []string{"test_rmse"}); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("an empty folder: %v, want ErrNotExist", err)
	}
	write("series.csv", series)
	// What an older perdure writes has no time split, and null is not zero.
	write("summary.json", `{"wall_seconds": 2, "time_split": null, "clock_differential": {"-4": 1, "0": 3}, `+
		`"missing_bound": null}`)
	res, err := readResult(folder, r, []string{"test_rmse"})
	if err != nil || res.Outcome != rises || res.Seconds != 2 || res.last() != 4.15 || res.Split.known() ||
		res.Missing != nil || res.MissingBound != nil || res.Differential[-4] != 1 {
		t.Errorf("%+v, %v", res, err)
	}
	write("summary.json", `{"wall_seconds": 2, "missing_updates": {"0": 4, "5": 1, "9": 0}, "missing_bound": 28,
		"time_split": {"compute": 0.5, "staleness": 0.25, "communication": 0.25,
		"workers": [{"slot": 0, "compute_s": 3, "staleness_s": 1, "communication_s": 0}]}}`)
	res, err = readResult(folder, r, []string{"test_rmse"})
	if err != nil || *res.Missing != 5 || *res.MissingBound != 28 || res.Split != (split{.5, .25, .25}) ||
		!slices.Equal(res.SplitWorkers, []split{{.75, .25, 0}}) {
		t.Errorf("%+v, %v", res, err)
	}
	write("summary.json", "{")
	if _, err := readResult(folder, r, nil); err == nil || !strings.Contains(err.Error(), "summary.json") {
		t.Errorf("a broken summary: %v", err)
	}
	write(endFile, diverged+"\nwhy\n")
	if res, err := readResult(folder, r, []string{"test_rmse"}); err != nil || res.Outcome != diverged ||
		res.Seconds != 1.5 {
		t.Errorf("a run that was ended: %+v, %v", res, err)
	}
}

func TestFlags(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s, err := parseFlags([]string{"-perdure", self, "-quick", "-seeds", "7"})
	if err != nil || !slices.Equal(s.Seeds, []int{7}) || !slices.Equal(s.Staleness, []int{0, 3}) ||
		s.Out == "docs/studies/consistency" {
		t.Errorf("quick with a seed: %+v, %v", s, err)
	}
	for args, want := range map[string]string{
		"-parts all": "is none of", "-clocks 100": "one for each", "-fractions 0.1,0.1": "twice",
		"-clocks 5,5": "at least",
		"-kinds ssp":  "needs bsp", "-lr -1": "-lr", "-perdure no/such": "make build",
	} {
		_, err := parseFlags(append([]string{"-perdure", self}, strings.Fields(args)...))
		if err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v; want a line with %q", args, err, want)
		}
	}
}
