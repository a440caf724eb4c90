package page

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/losses"
	"github.com/perdure/perdure/internal/run/sweep"
)

// folderOfLosses makes the folder of a study of losses: two twins of a problem, of which full recovery costs 8 and 12
// clocks and partial recovery 2 and 4, or 3 and 5; one whose partial recovery never comes to ε; and one that is not
// run yet.
func folderOfLosses(t testing.TB) (dir string, r *sweep.Results) {
	t.Helper()
	dir = t.TempDir()
	r = &sweep.Results{Schema: sweep.Schema, Kind: sweep.OfLosses, Axes: []string{"problem"}, Runs: 6, Missing: 2}
	for _, problem := range []string{"good", "bad", "late"} {
		c := sweep.CellResult{Name: problem, Choices: []string{problem}}
		for seed := range uint64(2) {
			if problem == "late" {
				continue
			}
			of := &losses.Result{
				Schema: losses.Schema, Measure: losses.MeasureTrain, Bytes: map[string]int64{"scar:8,1": 2e6},
				Twins:   []losses.Twin{{Seed: seed, Epsilon: 0.25 + float64(seed), Reached: 9}},
				Repeats: []losses.Repeat{{Same: true, Tries: 1 + int(seed)}},
			}
			for i := range 2 {
				trial := losses.Trial{Strategy: "checkpoint:8", Lost: 0.5, Seed: seed, Cost: 8 + 4*i}
				of.Trials = append(of.Trials, trial)
				trial.Strategy, trial.Cost = "scar:8,1", 2+2*i+int(seed)
				trial.Failures = []losses.Failure{{Clock: perdure.Clock(5 + i)}}
				trial.Censored = problem == "bad" && (seed > 0 || i > 0)
				of.Trials = append(of.Trials, trial)
			}
			must(t, of.Write(filepath.Join(dir, problem, fmt.Sprintf("seed-%d", seed))))
			c.Trials = append(c.Trials, sweep.Trial{Seed: seed})
		}
		r.Cells = append(r.Cells, c)
	}
	return dir, r
}

// TestLossesPage: what twins gave is put together, censored trials are told and not averaged away, and what is not
// run yet says so.
func TestLossesPage(t *testing.T) {
	text := `{{range cells}}
## {{name .}}

{{fewer . "scar:8,1" 0.5}}; {{claim . "scar:8,1" 0.5 0.65}}, {{claim . "scar:8,1" 0.5 0.7}},
{{claim . "scar:8,1" 0.5 0.71}}; {{show (cost . "scar:8,1" 0.5)}};
ε {{epsilons .}}; {{bytes .}} MB; {{judged .}}; {{done .}}

{{costs .}}
{{end}}
{{$better := better (cells) "scar:8,1" 0.5}}{{names $better}}
{{span $better "scar:8,1" 0.5}}, {{span (cells) "none" 0.5}}.
{{repeated (list (cell "problem=good"))}}
{{costsDrawn "good.svg" (cell "problem=good")}} {{forks "good.csv" (cell "problem=good")}}
{{costsDrawn "late.svg" (cell "problem=late")}}
{{bytesDrawn "bytes.svg" 0.5 (cell "problem=good") (cell "problem=late")}}
{{bytesDrawn "none.svg" 0.5 (cell "problem=late")}}`
	dir, r := folderOfLosses(t)
	page, to, err := render(t, dir, r, text)
	must(t, err)
	page = strings.ReplaceAll(page, "\n", " ")
	for _, want := range []string{
		"## `good`  65% [60%, 70%]; reproduced, not shown: the interval reaches it, not reproduced; ",
		"; 3.500 (3 to 4); ",
		"; ε 0.25 and 1.25; `scar:8,1` 4.00 MB; the loss on what it is trained on; true ",
		"## `late`  –; not comparable, not comparable, not comparable; –; ε ; MB; –;",
		"| `scar:8,1` | 4.00 | 3.5 [3.0, 4.0] | 65% [60%, 70%] | ",
		"## `bad`  –, 3 of 4 never come to ε; not reproduced, not reproduced, not reproduced; –;",
		"| `scar:8,1` | 4.00 | 2.0 [−∞, ∞], 3 of 4 censored |",
		" `good` 65%, –. 2 trials were repeated with servers that were really killed, amid a clock: 2 ended with the " +
			"model of the trial to the last bit, 1 of them at the first try. ",
		"](good.svg)", "](bytes.svg)", "[All trials](good.csv).",
	} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %q:\n%s", want, page)
		}
	}
	b, err := os.ReadFile(filepath.Join(to, "good.csv"))
	if err != nil || strings.Count(string(b), "\n") != 9 {
		t.Errorf("%v, %s", err, b)
	}
	if _, err := os.Stat(filepath.Join(to, "late.svg")); err == nil {
		t.Error("what is not run is drawn")
	}
	drawn, err := os.ReadFile(filepath.Join(to, "bytes.svg"))
	if err != nil || !strings.Contains(string(drawn), ">scar:C,1<") || strings.Contains(string(drawn), ">late<") {
		t.Errorf("%v, %s", err, drawn)
	}
	if _, err := os.Stat(filepath.Join(to, "none.svg")); err == nil {
		t.Error("nothing is drawn")
	}
	for text, want := range map[string]string{
		`{{forks "A.csv" (cell "problem=good")}}`:                                        "small letters",
		`{{forks "a.csv" (cell "problem=good")}}{{forks "a.csv" (cell "problem=good")}}`: "written twice",
		`{{costsDrawn "a" (cell "problem=good")}}`:                                       "small letters",
	} {
		if _, _, err := render(t, dir, r, text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
