package main

import (
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/plot"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/study"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// planned returns the results of a study before any run.
func planned(t *testing.T, file string, quick bool) *study.Results {
	t.Helper()
	text, err := os.ReadFile(file)
	must(t, err)
	keys := regexp.MustCompile(`[a-z][a-z0-9-]+`).FindAllString(string(text), -1) // any key a job may have
	check := func([]string) (s settings.Run, err error) {
		s.Job.Slots, s.Job.Servers, s.Job.Clocks = 8, 4, 100
		return s, nil
	}
	f, err := study.Read(file, []study.Kind{
		{Name: study.KindTrain, Keys: keys, Check: check}, {Name: study.KindLosses, Keys: keys, Check: check},
	}, quick)
	must(t, err)
	f.LeaveOut, f.Prices = true, ""
	s, err := f.Check()
	must(t, err)
	n := len(s.Cells)
	r := &study.Results{Kind: s.Kind.Name, Name: s.Name, Runs: n, Missing: n, Quick: quick}
	for _, a := range s.Vary {
		r.Axes = append(r.Axes, a.Name)
	}
	for _, c := range s.Cells {
		r.Cells = append(r.Cells, study.CellResult{Name: c.Name, Choices: c.Labels, Failures: c.Plan})
	}
	return r
}

// TestPages checks that each study has a page, even before its first run, and that the page refers only to cells that
// the study has; other references would leave gaps.
func TestPages(t *testing.T) {
	files, err := filepath.Glob("../*.yaml")
	must(t, err)
	if len(files) != len(writers) {
		t.Errorf("%d studies, and %d pages", len(files), len(writers))
	}
	for _, file := range files {
		for _, quick := range []bool{false, true} {
			s, err := open(t.TempDir(), planned(t, file, quick))
			must(t, err)
			to := filepath.Join(t.TempDir(), "page")
			if err := s.write(to); err != nil {
				t.Errorf("%s, quick %t: %v", file, quick, err)
				continue
			}
			text, err := os.ReadFile(filepath.Join(to, "README.md"))
			must(t, err)
			if !strings.HasPrefix(string(text), "# ") || regexp.MustCompile(`NaN|%!`).Match(text) {
				t.Errorf("%s, quick %t:\n%s", file, quick, text)
			}
			if !quick && len(s.unknown) > 0 {
				t.Errorf("%s: no cell has %q", file, s.unknown)
			}
		}
	}
}

// folder creates the directory of a study: two strategies, with and without failures, with two seeds each. Accuracy
// rises by 0.1 a second until 5 s, and half as fast under slow. With failures, nothing is measured between 2 s and 4 s.
func folder(t testing.TB) (dir string, r *study.Results) {
	t.Helper()
	dir = t.TempDir()
	r = &study.Results{Name: "tried", Axes: []string{"recovery"}, Runs: 8, Version: "1"}
	for _, recovery := range []string{"fast", "slow servers=2"} {
		for _, plan := range []string{"none", "killed"} {
			name, _, _ := strings.Cut(recovery, " ")
			c := study.CellResult{Name: name + "_" + plan, Choices: []string{recovery}, Failures: plan}
			for seed := range uint64(2) {
				run := filepath.Join(dir, c.Name, fmt.Sprintf("seed-%d", seed))
				must(t, os.MkdirAll(run, 0o755))
				series := "seconds,clock,test_accuracy,backlog\n"
				for i := range 11 {
					x := float64(i) / 2
					y := 0.1*x + 0.01*float64(seed)
					if name == "slow" {
						y /= 2
					}
					if plan == "none" || x <= 2 || x >= 4 {
						series += fmt.Sprintf("%g,%d,%g,0\n", x, 10*i, y)
					}
				}
				must(t, os.WriteFile(filepath.Join(run, "series.csv"), []byte(series), 0o644))
				must(t, os.WriteFile(filepath.Join(run, "summary.json"), []byte(`{"usage": {"server": {"mb_peak": 30,
					"cpu_seconds": 40}, "worker": {"mb_peak": 12, "cpu_seconds": 2, "mb_stored": 3}}, "beyond_bound": 4,
					"time_split": {"staleness": 0.25}, "clock_differential": {"-1": 3, "-2": 1},
					"failures": [{"at_seconds": 2.2}]}`), 0o644))
				c.Trials = append(c.Trials, study.Trial{
					Seed: seed, Figures: map[string]float64{
						"accuracy": 0.5 + 0.01*float64(seed), "clocks": 100, "cost": 20, "lost": 7, "seconds": 10,
					},
				})
			}
			r.Cells = append(r.Cells, c)
		}
	}
	return dir, r
}

func TestMeasures(t *testing.T) {
	s, err := open(folder(t))
	must(t, err)
	run := s.cell(labelSet{"recovery": "slow", "failures": "killed"}).trials[0]
	nan, column := math.NaN(), "test_accuracy"
	for i, c := range []struct {
		of   measure
		want float64
	}{
		{accuracy, 0.5},
		{lost, 7},
		{redone, nan},
		{waiting, 0.25},
		{beyondBound, 4},
		{missingBound, nan},
		{serverMB, 30},
		{logMB, nan},
		{cpuSeconds, 42},
		{mbStored, 3},
		{ratio(accuracy, lost), 0.5 / 7},
		{differential(mean), -1.25},
		{differential(lowest), -2},
		{differential(highest), -1},
		{differential(deviation), math.Sqrt(3) / 4},
		{differentialAt("-1"), 0.75},
		{missing(mean), nan},
		{aboveMin(column), 0.25},
		{before(column, 2.2), 0.1},
		{next(column, 2.2), 0.2},
		{change(column, 2.2), 0.1},
		{changeBy(column, 4.5, 2.2), 0.125},
		{gap(column, 2.2), 2},
		{gap(column, 9), nan},
		{timeToReach(column, 0.2), 4},
		{timeToReach(column, 0.9), math.Inf(1)},
		{timeToReach("test_loss", 0.9), nan},
		{costTo(cost, column, 0.2), 8},
		{regretOf(column, 0), 12.5},
		{regretOf("test_loss", 0), nan},
	} {
		got := c.of(run)
		if math.Abs(got-c.want) > 1e-9 || math.IsNaN(got) != math.IsNaN(c.want) {
			t.Errorf("measure %d: %v, want %v", i, got, c.want)
		}
	}
}

// atEnd returns the last value of a column.
func atEnd(column string) measure {
	return func(t *trial) float64 {
		p := t.points(column)
		return valueAt(p.Y, len(p.Y)-1)
	}
}

// TestParts checks the building blocks of pages.
func TestParts(t *testing.T) {
	dir, r := folder(t)
	r.Quick, r.Missing = true, 2
	s, err := open(dir, r)
	must(t, err)
	to := filepath.Join(t.TempDir(), "page")
	writers["tried"] = func(p *page) {
		worst, best := ends(p.where(labelSet{"failures": "none"}), timeToReach("test_accuracy", 0.2))
		fmt.Fprintf(&p.text, "# %s\n\nLate is `%s`, with %s, apart %t and %t, %s.\n\n", p.Name,
			p.nameOf(best, "recovery"), best.show(accuracy, percent),
			distinguishable(worst, best, atEnd("test_accuracy")), distinguishable(worst, best, accuracy),
			failedRuns(p.cells))
		p.text.WriteString(p.banner(p.atATime(), "few") + "\n\n" +
			p.table(p.where(labelSet{"failures": "killed"}), []string{"recovery"},
				col("end", atEnd("test_accuracy"), "%.3f"), column{"without", atEnd("test_accuracy"), "", "none"},
				col("unknown", redone, "")) +
			p.curves("a.svg", "Over time", "test_accuracy", "test accuracy", p.cells, styleAxes{"recovery", "failures"},
				"failures") +
			p.dots("b.svg", "At the end", p.cells, nil, styleAxes{colour: "recovery"},
				col("accuracy", accuracy, percent)) +
			"- an item that\nis long " + strings.Repeat("and ", 30) + "\n\n```\ncode   as it is\n```\n")
		p.cell(labelSet{"recovery": "none"})
	}
	t.Cleanup(func() { delete(writers, "tried") })
	must(t, s.write(to))
	b, err := os.ReadFile(filepath.Join(to, "README.md"))
	must(t, err)
	for _, want := range []string{
		"# tried\n\nLate is `slow`, with 50.5% (50.0% to 51.0%), apart true and false, 0 of 8 runs.\n",
		"one run at a time. **n = 2** trials per cell. **Made with",
		"the figures mean nothing.** **2 of 8 runs are missing.**",
		"> Cells show the median and, in parentheses, the minimum and maximum of the trials; the text gives " +
			"medians.\n> **Limits:** few",
		"| | end | without | unknown |\n|---|--:|--:|--:|\n" +
			"| `fast` | 0.505 (0.500 to 0.510) | 0.505 (0.500 to 0.510) | – |\n",
		"\n![Over time](a.svg)\n\n![At the end](b.svg)\n\n- an item that is long and ", "and\n  and and",
		"\ncode   as it is\n",
	} {
		if !strings.Contains(string(b), want) {
			t.Errorf("the page lacks %q:\n%s", want, b)
		}
	}
	for _, file := range []string{"a.svg", "b.svg", "runs.csv"} {
		if b, err := os.ReadFile(filepath.Join(to, file)); err != nil || len(b) == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
	if !slices.Equal(s.unknown, []string{"recovery=none"}) {
		t.Errorf("unknown %q", s.unknown)
	}
}

// TestRefuses checks that a study without a page and an unreadable run are reported, and that no page is written.
func TestRefuses(t *testing.T) {
	dir, r := folder(t)
	b, err := json.Marshal(r)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, "study.json"), b, 0o644))
	to := filepath.Join(dir, "page")
	if err := run(dir, to); err == nil || !strings.Contains(err.Error(), `no page for the study "tried"`) {
		t.Errorf("study without a page: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "fast_none", "seed-1", "series.csv")))
	if err := run(dir, to); err == nil || !strings.Contains(err.Error(), "and run the study again") {
		t.Errorf("a run without a series: %v", err)
	}
	if _, err := os.Stat(to); err == nil {
		t.Error("a page was written")
	}
}

func TestVerdicts(t *testing.T) {
	of := func(low, high float64) plot.Spread { return plot.SpreadOf([]float64{low, high}) }
	one := func(v float64) plot.Spread { return plot.SpreadOf([]float64{v}) }
	for i, c := range []struct{ got, want string }{
		{falls(of(-.3, -.2), of(-.1, .1)), reproduced},
		{falls(of(-.3, -.05), of(-.1, .1)), notReproduced},
		{rises(of(0.1, 0.2), of(-.1, 0)), reproduced},
		{rises(of(0.1, 0.2), of(0, .15)), notReproduced},
		{rises(of(-.1, .2), of(-.3, -.2)), notReproduced},
		{rises(plot.SpreadOf(nil), of(0, 1)), incomparable},
		{within(4.9, 3), reproduced},
		{within(4.9, 1), notReproduced},
		{within(4.9, math.NaN()), incomparable},
		{within(-0.056, -0.05), reproduced},
		{within(-0.056, -0.01), notReproduced},
		{within(-0.056, 0.056), notReproduced},
		{within(0, 1), incomparable},
		{times(-0.1, -0.01), "0.10 times"},
		{times(-0.1, 0.01), "opposite"},
		{times(23, math.NaN()), "–"},
		{above(of(.8, .9), of(.6, .7)), reproduced},
		{above(of(.8, .9), of(.6, .82)), notReproduced},
		{above(one(.8), one(.7)), trueInOneTrial},
		{above(one(.7), of(.8, .9)), falseInOneTrial},
		{above(of(.8, .9), one(.7)), trueInOneTrial},
		{falls(one(-.3), one(.1)), trueInOneTrial},
		{rises(one(.1), one(0)), trueInOneTrial},
		{rises(one(-.1), one(0)), falseInOneTrial},
	} {
		if c.got != c.want {
			t.Errorf("%d: %s, want %s", i, c.got, c.want)
		}
	}
}
