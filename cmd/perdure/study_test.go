package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/study"
)

// TestStudies: the studies of this repository can be run, and all their runs finish.
func TestStudies(t *testing.T) {
	onlyAll(t)
	for name, cells := range map[string]int{"grid": 6, "spot": 2} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			file, out := filepath.Join("..", "..", "studies", name+".yaml"), newFolder(t)
			wantOut(t, 0, []string{"study", file, "--list"}, " cells, 3 seeds: ")
			code, text, errs := invoke(t, "study", file, "--quick", "--json", "--out", out)
			var r study.Results
			if err := json.Unmarshal([]byte(text), &r); err != nil || code != 0 {
				t.Fatalf("exit code %d, %v: %s", code, err, errs)
			}
			if len(r.Cells) != cells || r.Missing != 0 || len(r.LeftOut) != 0 {
				t.Errorf("%d cells, %d runs missing, left out %v", len(r.Cells), r.Missing, r.LeftOut)
			}
			for _, c := range r.Cells {
				if len(c.Trials) != 1 {
					t.Errorf("%s: %d trials, %+v", c.Name, len(c.Trials), c.Failed)
				}
				if c.Figures["cost-spot"].Median <= 0 {
					t.Errorf("%s: the cost on spot machines is %v", c.Name, c.Figures["cost-spot"])
				}
				if hit := c.Figures["faults"].Median > 0; hit != (c.Failures != "none" && c.Failures != "calm") {
					t.Errorf("%s: %v faults", c.Name, c.Figures["faults"].Median)
				}
			}
		})
	}
}

// TestScarStudy: the study of the cost of lost servers runs in memory and can be continued.
func TestScarStudy(t *testing.T) {
	t.Parallel()
	out := newFolder(t)
	args := []string{"study", filepath.Join("..", "..", "studies", "scar.yaml"), "--quick", "--out", out}
	code, text, errs := invoke(t, args...)
	if code != 0 || !strings.Contains(text, "\nquadratic: 2 twins\n") {
		t.Fatalf("exit code %d, %s%s", code, text, errs)
	}
	before, err := os.Stat(filepath.Join(out, "quadratic", "seed-1", "costs.json"))
	must(t, err)
	code, _, errs = invoke(t, append(args, "--json")...)
	if code != 0 || !strings.Contains(errs, "runs are already finished") {
		t.Errorf("exit code %d: %s", code, errs)
	}
	after, err := os.Stat(filepath.Join(out, "quadratic", "seed-1", "costs.json"))
	must(t, err)
	if !after.ModTime().Equal(before.ModTime()) {
		t.Error("a finished run was repeated")
	}
}

// TestStudyTwice: under bsp a study yields the same models each time, whichever processes die, and other models for
// another seed.
func TestStudyTwice(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	file := filepath.Join(t.TempDir(), "twice.yaml")
	must(t, os.WriteFile(file, []byte(`
job: {workload: quadratic, workers: 2, servers: 2, shards: 4, consistency: bsp, recovery: "checkpoint:5", clocks: 30}
failures:
  none: []
  killed: ["kill:server:0@clock:12", "kill:worker:1@clock:20"]
seeds: 2
`), 0o666))
	models := map[uint64][]string{} // by seed
	for range 2 {
		code, text, errs := invoke(t, "study", file, "--busy", "--json", "--out", newFolder(t))
		var r study.Results
		if err := json.Unmarshal([]byte(text), &r); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v: %s", code, err, errs)
		}
		for _, c := range r.Cells {
			if died := c.Figures["faults"].Median; (died > 0) != (c.Failures == "killed") {
				t.Errorf("%s: %v faults", c.Name, died)
			}
			for _, run := range c.Trials {
				models[run.Seed] = append(models[run.Seed], *run.Model)
			}
		}
	}
	for seed, of := range models {
		if len(of) != 4 || len(slices.Compact(of)) != 1 {
			t.Errorf("seed %d: models %v; want one, 4 times", seed, of)
		}
	}
	if len(models) != 2 || models[1][0] == models[2][0] {
		t.Errorf("models of two seeds: %v", models)
	}
}

// TestStudyMistakes: mistakes yield a one-line error, and nothing is run.
func TestStudyMistakes(t *testing.T) {
	t.Parallel()
	root := t.TempDir()
	file := filepath.Join(root, "a.yaml")
	for text, want := range map[string]string{
		"job: {wokers: 3}":                                  `unknown key "wokers"; did you mean workers?`,
		"job: {workers: many}":                              "cell none cannot run: --workers: expected a valid",
		"vary: {recovery: [resend:20, bend]}":               "cell bend_none cannot run: ",
		"vary: {servers: [1, 2]}\njob: {recovery: chain:2}": "cell 1_none cannot run: ",
		"seeds: 1\nprices: none.yaml":                       "none.yaml cannot be read: no such file",
		"job: {out: x}":                                     `unknown key "out"`,
		"kind: losses\njob: {lost: 2}":                      "cell all cannot run: invalid --lost 2; choose a fraction",
		"kind: losses\njob: {twins: 2}":                     `unknown key "twins"`,
		"failures: {a: [kill:server:7@1s]}":                 `cell a cannot run: fault "kill:server:7@1s"`,
	} {
		must(t, os.WriteFile(file, []byte(text), 0o666))
		code, out, errs := invoke(t, "study", file, "--out", filepath.Join(root, "runs"))
		if code != exitUsage || !strings.Contains(errs, want) || strings.Count(errs, "\n") != 1 || out != "" {
			t.Errorf("%s: exit code %d: %s%s", text, code, out, errs)
		}
	}
	if left, err := os.ReadDir(root); err != nil || len(left) != 1 {
		t.Errorf("files are left: %v (%v)", left, err)
	}
}

// TestStudiesHere: the studies of this repository are valid, both unchanged and with --quick.
func TestStudiesHere(t *testing.T) {
	t.Parallel()
	files, err := filepath.Glob("../../studies/*.yaml")
	must(t, err)
	if len(files) < 5 {
		t.Fatalf("too few studies: %v", files)
	}
	kinds := studyKinds()
	for i, k := range kinds {
		kinds[i].Check = func(args []string) (settings.Run, error) { return k.Check(withoutData(args)) }
	}
	for _, file := range files {
		for _, quick := range []bool{false, true} {
			f, err := study.Read(file, kinds, quick)
			must(t, err)
			if _, err := f.Check(); err != nil {
				t.Errorf("%s, quick %t: %v", file, quick, err)
			}
		}
	}
}

// withoutData removes arguments that name data files, which may not exist here.
func withoutData(args []string) (rest []string) {
	for _, a := range args {
		if !strings.HasPrefix(a, "--data=data/") {
			rest = append(rest, a)
		}
	}
	return rest
}
