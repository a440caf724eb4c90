package page

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/study"
	"github.com/perdure/perdure/internal/run/sweep"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// folder makes a study's folder: two strategies, with failures and without, of two seeds. Accuracy rises by 0.1 a
// second to its end at 5 s; under slow by half of that, and with failures nothing is measured from 2 s to 4 s.
func folder(t testing.TB) (dir string, r *sweep.Results) {
	t.Helper()
	dir = t.TempDir()
	r = &sweep.Results{Schema: sweep.Schema, Name: "tried", Axes: []string{"recovery"}, Runs: 8, Version: "1"}
	for _, recovery := range []string{"fast", "slow servers=2"} {
		for _, plan := range []string{"none", "killed"} {
			name, _, _ := strings.Cut(recovery, " ")
			c := sweep.CellResult{Name: name + "_" + plan, Choices: []string{recovery}, Failures: plan}
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
				summary := map[string]any{
					"clocks": 100,
					"usage": map[string]any{
						"server": map[string]any{"mb_peak": 30}, "worker": map[string]any{"mb_peak": 12},
					},
					"clock_differential": map[string]any{"-1": 3, "-2": 1},
					"failures":           []any{map[string]any{"at_seconds": 2.2}},
				}
				b, err := json.Marshal(summary)
				must(t, err)
				must(t, os.WriteFile(filepath.Join(run, "summary.json"), b, 0o644))
				c.Trials = append(c.Trials, sweep.Trial{
					Seed: seed, Figures: map[string]float64{"accuracy": 0.5 + 0.01*float64(seed), "lost": 7},
				})
			}
			r.Cells = append(r.Cells, c)
		}
	}
	return dir, r
}

// render writes a page of a template.
func render(t testing.TB, dir string, r *sweep.Results, text string) (page, to string, err error) {
	t.Helper()
	to = filepath.Join(t.TempDir(), "page")
	file := filepath.Join(t.TempDir(), "a.md.tmpl")
	must(t, os.WriteFile(file, []byte(text), 0o644))
	s, err := Open(dir, r)
	must(t, err)
	if err := s.Write(file, to); err != nil {
		return "", to, err
	}
	b, err := os.ReadFile(filepath.Join(to, "README.md"))
	must(t, err)
	return string(b), to, nil
}

func TestMeasures(t *testing.T) {
	s, err := Open(folder(t))
	must(t, err)
	c, err := s.one("recovery=slow", "failures=killed")
	must(t, err)
	for measure, want := range map[string]float64{
		"accuracy": 0.5, "lost": 7, "clocks": 100, "usage.server.mb_peak": 30, "failures.0.at_seconds": 2.2,
		"at test_accuracy 1.25": 0.0625, "end test_accuracy": 0.25, "before test_accuracy 2.2": 0.1,
		"next test_accuracy 2.2": 0.2, "change test_accuracy 2.2": 0.1, "gap test_accuracy 2.2": 2,
		"back test_accuracy 3": 0.2, "rise test_accuracy 0.2": 4, "rise test_accuracy 0.9": math.Inf(1),
		"fall test_accuracy 0.05": 0, "count test_accuracy": 8, "least test_accuracy": 0, "most test_accuracy": 0.25,
		"mean clock_differential": -1.25, "lowest clock_differential": -2, "share clock_differential -1": 0.75,
		"deviation clock_differential": math.Sqrt(3) / 4, "sum usage mb_peak": 42, "accuracy / lost": 0.5 / 7,
		"clocks - lost - 3": 90, "clocks / 10 * 3 + 1 - 2": 29, "clocks / 10 / 5": 2,
		"usage.server.mb_peak + usage.worker.mb_peak": 42, "end test_accuracy - at test_accuracy 1": 0.2,
		"root clocks": 10, "regret test_accuracy 0": 12.5, "nothing": math.NaN(), "gap test_accuracy 9": math.NaN(),
		"at test_loss 1": math.NaN(), "sum usage nothing": math.NaN(), "clock_differential": math.NaN(),
	} {
		got, err := c.Trials[0].measure(strings.Fields(measure))
		same := math.Abs(got-want) < 1e-9 || got == want || math.IsNaN(got) && math.IsNaN(want)
		if err != nil || !same {
			t.Errorf("%s: %v, %v, want %v", measure, got, err, want)
		}
	}
	for _, measure := range []string{"", "at test_accuracy x", "jump test_accuracy 3", "of what is this a measure"} {
		if _, err := c.Trials[0].measure(strings.Fields(measure)); err == nil {
			t.Errorf("%q is a measure", measure)
		}
	}
}

func TestPage(t *testing.T) {
	text, err := os.ReadFile("testdata/page.md.tmpl")
	must(t, err)
	dir, r := folder(t)
	page, to, err := render(t, dir, r, string(text))
	must(t, err)
	for _, want := range []string{
		"# tried\n\nMost accurate is `fast` with 50.5% (50.0% to 51.0%), apart.\n\n`fast` and `slow`, `none` and " +
			"`killed`, 2 trials\n",
		"| | end | without |\n|---|--:|--:|\n| `fast` | 0.505 (0.500 to 0.510) | 0.51 (0.50 to 0.51) |\n",
		"![Over time](a-1.svg)\n![At the end](b.svg)\n- an item that", "make it\n  long, and more words\n",
		"\ncode   as it is\n",
		"\nnot comparable, reproduced, not reproduced\n", "\n0 of 4 runs\n",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	for _, file := range []string{"a-1.svg", "b.svg", "runs.csv"} {
		if b, err := os.ReadFile(filepath.Join(to, file)); err != nil || len(b) == 0 {
			t.Errorf("%s: %v", file, err)
		}
	}
}

// TestRefuses: what a template gets wrong is one line, and no page.
func TestRefuses(t *testing.T) {
	dir, r := folder(t)
	for text, want := range map[string]string{
		"{{":                                               "unclosed action",
		"{{.Nothing}}":                                     "can't evaluate field Nothing",
		`{{cell "recovery=fast"}}`:                         "2 cells are recovery=fast",
		`{{cells "model=fast"}}`:                           "the condition \"model=fast\"",
		`{{cells "fast"}}`:                                 "write AXIS=LABEL",
		`{{figure (index (cells) 0) "at x y"}}`:            "y is no number",
		`{{table (cells) "" "heading"}}`:                   "write \"HEADING; MEASURE",
		`{{curves "A.svg" "" "x" (cells)}}`:                "small letters",
		`{{curves "a.svg" "" "x" (cells) "hue=recovery"}}`: "the option \"hue=recovery\"",
		`{{curves "a.svg" "" "x" (cells)}}` + `{{dots "a.svg" "" (cells) "" "" "a; lost"}}`: "drawn twice",
	} {
		_, to, err := render(t, dir, r, text)
		if err == nil || !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), want) ||
			strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
		if _, err := os.Stat(to); err == nil {
			t.Errorf("%s: there is a page", text)
		}
	}
	must(t, os.Remove(filepath.Join(dir, "fast_none", "seed-1", "series.csv")))
	if _, err := Open(dir, r); err == nil || !strings.Contains(err.Error(), "seed-1 cannot be read") {
		t.Errorf("a run without a series: %v", err)
	}
}

func TestVerdicts(t *testing.T) {
	of := func(low, high float64) study.Spread { return study.SpreadOf([]float64{low, high}) }
	one := func(v float64) study.Spread { return study.SpreadOf([]float64{v}) }
	for i, c := range []struct{ got, want string }{
		{falls(of(-.3, -.2), of(-.1, .1)), reproduced},
		{falls(of(-.3, -.05), of(-.1, .1)), notReproduced},
		{rises(of(0.1, 0.2)), reproduced},
		{rises(of(-.1, .2)), notReproduced},
		{rises(study.SpreadOf(nil)), incomparable},
		{within(4.9, 3, 2), reproduced},
		{within(4.9, 1, 2), notReproduced},
		{within(4.9, math.NaN(), 2), incomparable},
		{within(-0.056, -0.05, 2), reproduced},
		{within(-0.056, -0.01, 2), notReproduced},
		{within(-0.056, 0.056, 2), notReproduced},
		{within(0, 1, 2), incomparable},
		{times(-0.1, -0.01), "0.10 times"},
		{times(-0.1, 0.01), "the other way"},
		{times(23, math.NaN()), "–"},
		{above(of(.8, .9), of(.6, .7), .1), reproduced},
		{above(of(.8, .9), of(.6, .82), .1), notReproduced},
		{above(of(.8, .9), of(.7, .79), .2), notReproduced},
		{above(one(.8), one(.7), 0), soOnce},
		{above(one(.7), of(.8, .9), 0), notSoOnce},
		{above(of(.8, .9), one(.7), 0), soOnce},
		{falls(one(-.3), one(.1)), soOnce},
		{rises(one(.1)), soOnce},
		{rises(one(-.1)), notSoOnce},
	} {
		if c.got != c.want {
			t.Errorf("%d: %s, want %s", i, c.got, c.want)
		}
	}
}
