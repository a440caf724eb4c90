package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestTableModel: a table's own consistency model applies to it, and the summary measures reads and where the time
// went.
func TestTableModel(t *testing.T) {
	s, dir := trained(t, small("--consistency", "ssp:2,w=bsp")...)
	sameModel(t, s, one(t), dir) // the model of a bsp job
	if s.MissingBound == nil || *s.MissingBound != 3 || s.Consistency.Kind != perdure.BSP ||
		len(s.TableConsistency) > 0 {
		t.Errorf("models %s and %v, missing bound %v", s.Consistency, s.TableConsistency, s.MissingBound)
	}
	checkMeasures(t, s, dir)
}

// TestComputeTime: clocks take at least the requested time, and run.json keeps the request.
func TestComputeTime(t *testing.T) {
	t.Parallel()
	s, dir := trained(t, small("--consistency", "w=ssp:1", "--compute-ms", "40", "--cache-mb", "3", "--clocks",
		"20")...)
	if s.WallSeconds < 20*0.04/2 { // the run's time starts when the supervisor learns of the first clock
		t.Errorf("20 clocks of at least 40 ms took %g s", s.WallSeconds)
	}
	for name, read := range map[string]func() (settings.Run, error){
		"from":   func() (settings.Run, error) { return (&settings.Flags{}).Repeat(filepath.Join(dir, "run.json")) },
		"resume": func() (settings.Run, error) { return clocks(30).Resume(dir) },
	} {
		again, err := read()
		must(t, err)
		if again.ComputeMs != 40 || again.CacheMB != 3 || again.Job.Models() != "ssp:1" {
			t.Errorf("--%s: %d ms, %d MiB, %s", name, again.ComputeMs, again.CacheMB, again.Job.Models())
		}
	}
}

// TestRunJSON: run.json keeps the tables' consistency models, is checked when it is read, and may lack keys that have a
// default.
func TestRunJSON(t *testing.T) {
	_, dir := trained(t, small("--clocks", "20")...)
	path := filepath.Join(dir, "run.json")
	text, err := os.ReadFile(path)
	must(t, err)
	// change reads a run.json in which every match of pattern is replaced.
	change := func(pattern, by string) (settings.Run, error) {
		changed := regexp.MustCompile(pattern).ReplaceAll(text, []byte(by))
		if string(changed) == string(text) {
			t.Fatalf("no %s in %s", pattern, text)
		}
		must(t, os.WriteFile(path, changed, 0o666))
		return (&settings.Flags{}).Repeat(path)
	}
	s, err := change(`\s*"cache_mb": \d+,`, ``)
	if err != nil || s.CacheMB != settings.DefaultCacheMB || s.ComputeMs != 0 {
		t.Errorf("without cache_mb: %d MiB, %v", s.CacheMB, err)
	}
	if _, err := change(`"Seed": 7`, `"Seed": 7, "Consistency": "bsp"`); err == nil ||
		!strings.Contains(err.Error(), "params.Consistency") { // where earlier builds wrote it
		t.Errorf("an unknown key: %v", err)
	}
	model := `"consistency": "bsp", "table_consistency": `
	if s, err = change(`"consistency": "bsp"`, model+`{"w": "essp:2"}`); err != nil ||
		s.Job.ConsistencyOf("w").String() != "essp:2" {
		t.Errorf("with a model for w: %s, %v", s.Job.Models(), err)
	}
	for by, want := range map[string]string{
		model + `{"v": "bsp"}`:    "unknown table v",
		model + `{"w": "vap:-1"}`: `bound "-1"`,
		model + `{"a b": "bsp"}`:  "not a valid table name",
	} {
		if _, err := change(`"consistency": "bsp"`, by); err == nil ||
			!regexp.MustCompile(want).MatchString(err.Error()) {
			t.Errorf("%s: %v, want %s", by, err, want)
		}
	}
	if _, err := change(`"cache_mb": \d+`, `"cache_mb": -1`); err == nil {
		t.Error("a cache of -1 MiB was accepted")
	}
	if _, err := change(`"eval_every"`, `"compute_ms": -1, "eval_every"`); err == nil {
		t.Error("clocks of -1 ms were accepted")
	}
}
