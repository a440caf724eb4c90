package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/humanize"
	"github.com/perdure/perdure/internal/run/settings"
)

// edited returns a run.json in which every match of a pattern is replaced. The arguments are pairs of pattern and
// replacement.
func edited(t *testing.T, text []byte, replace ...string) []byte {
	t.Helper()
	for i := 0; i < len(replace); i += 2 {
		changed := regexp.MustCompile(replace[i]).ReplaceAll(text, []byte(replace[i+1]))
		if string(changed) == string(text) {
			t.Fatalf("no %s in %s", replace[i], text)
		}
		text = changed
	}
	return text
}

// clocks returns a request for a run with --clocks.
func clocks(n int64) *settings.Flags {
	return &settings.Flags{Shape: settings.Shape{Clocks: n}, Given: map[string]bool{"clocks": true}}
}

// sealedCase is a change to the run.json of a run that is then resumed, and the expected result.
type sealedCase struct {
	change []string
	want   string // the expected error; "" if the change is allowed
}

// sealedCases returns the changes. same is a directory with the same data and other one with different data.
func sealedCases(same, other string) []sealedCase {
	return []sealedCase{
		{[]string{`"version": "`, `"version": "other `}, ``},
		{[]string{`"servers": 2`, `"servers": 3`}, ``},
		{[]string{`"Data": "[^"]*"`, `"Data": "` + same + `"`}, ``},
		{[]string{`"Seed": 7`, `"Seed": 0`}, `params.Seed is 0, but job.seed is 7`},
		{[]string{`"(s|S)eed": 7`, `"${1}eed": 8`}, `job.seed to 8, but the checkpoint was made with 7`},
		{[]string{`"(s|S)lots": 3`, `"${1}lots": 4`}, `job.slots to 4, but the checkpoint was made with 3`},
		{[]string{`"shards": 6`, `"shards": 5`}, `job.shards to 5, but the checkpoint was made with 6`},
		{
			[]string{`"consistency": "bsp"`, `"consistency": "asp"`},
			`job.consistency to "asp", but the checkpoint was made with "bsp"`,
		},
		{[]string{`"consistency": "bsp"`, `"consistency": "asp", "stale_scale": "inverse"`}, `job.consistency`},
		{[]string{`"Batch": 8`, `"Batch": 9`}, `params.Batch to 9, but the checkpoint was made with 8`},
		{[]string{`"rate": 0.05`, `"rate": 0.0500001`}, `rate to 0.0500001, but the checkpoint was made with 0.05`},
		{[]string{`"kind": "sgd"`, `"kind": "adagrad", "epsilon": 1e-9`}, `the checkpoint was made with`},
		{
			[]string{`"Sparse": false`, `"Sparse": true`},
			`params.Sparse to true, but the checkpoint was made with none|tables`,
		},
		{
			[]string{`"Data": "[^"]*"`, `"Data": "` + other + `"`},
			`the data of .* has changed since the checkpoint was made`,
		},
		{[]string{`"Data": "[^"]*"`, `"Data": ""`}, `the data of`},
	}
}

// TestSealedSettings: a run resumes only with the settings that made its checkpoint. Otherwise a one-line error names
// run.json, the setting and its former value.
func TestSealedSettings(t *testing.T) {
	_, dir := trained(t, small("--clocks", "20")...)
	file := filepath.Join(dir, "run.json")
	text, err := os.ReadFile(file)
	must(t, err)
	resume := func(changed []byte) error {
		must(t, os.WriteFile(file, changed, 0o666))
		_, err := clocks(30).Resume(dir)
		return err
	}
	same, other := filepath.Join(t.TempDir(), "same"), filepath.Join(t.TempDir(), "other")
	for _, folder := range []string{same, other} {
		must(t, os.CopyFS(folder, os.DirFS(pictures)))
	}
	labels := filepath.Join(other, "t10k-labels-idx1-ubyte")
	b, err := os.ReadFile(labels)
	must(t, err)
	b[8] = (b[8] + 1) % 10
	must(t, os.WriteFile(labels, b, 0o666))

	for _, c := range sealedCases(same, other) {
		err := resume(edited(t, text, c.change...))
		if c.want == "" {
			if err != nil {
				t.Errorf("%v: %v", c.change, err)
			}
			continue
		}
		if err == nil || !regexp.MustCompile(c.want).MatchString(err.Error()) ||
			!strings.Contains(err.Error(), file) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v; want one line with %s and %s", c.change, err, c.want, file)
		}
	}
}

// TestOddRunJSON: both --from and --resume reject a run.json that no run has written immediately, with one line that
// names the file and the key.
func TestOddRunJSON(t *testing.T) {
	_, dir := trained(t, small("--clocks", "20")...)
	file := filepath.Join(dir, "run.json")
	text, err := os.ReadFile(file)
	must(t, err)
	for _, c := range []struct{ pattern, by, want string }{
		{`"cut": 0`, `"cut": -1`, `cut is -1; it must be from 0 to`},
		{`"cut": 0`, `"cut": 5`, `resumed: it is missing, but generation, cut`},
		{`"generation": 0`, `"generation": 18446744073709551615`, `generation is 9223372036854775807; it must be`},
		{`"eval_every": 0`, `"eval_every": -1`, `eval_every is -1; it must be from 0 to`},
		{`"eval_every": 0`, `"eval_every": 0, "eval_ms": -5`, `eval_ms is -5`},
		{`"eval_every": 0`, `"eval_every": 0, "eval_every": 5`, `duplicate key eval_every`},
		{`"eval_every"`, `"evalEvery"`, `unknown key evalEvery`},
		{`"eval_every": 0`, `"eval_every": "often"`, `eval_every cannot be a JSON string`},
		{`"Batch": 8`, `"Batch": 8, "batch": 9`, `unknown key params.batch; write Batch`},
		{`"Batch": 8`, `"Batch": -8`, `invalid batch of -8 examples`},
		{`"retain_mb": \d+`, `"retain_mb": -5`, `retain_mb is -5`},
		{`"retain_mb": \d+`, `"retain_mb": 512, "compute_ms": 100000`, `compute_ms is 100000; it must be from 0 to`},
		{`"keep": 1`, `"keep": -1`, `checkpoints.keep is -1; it must be from 0 to 10000`},
		{`"clocks": 20`, `"clocks": 0`, `job.clocks is 0`},
		{`"servers": 2`, `"servers": 2147483647`, `job: invalid number of servers 2147483647`},
		{`"shards": 6`, `"shards": -6`, `job: invalid number of shards -6`},
		{`"slots": 3`, `"slots": 2147483647`, `job: invalid number of workers 2147483647`},
		{`"recovery": "checkpoint:10"`, `"recovery": "hope"`, `job.recovery: unknown recovery strategy "hope"`},
		{`"faults": null`, `"faults": ["kill:server:7@1s"]`, `faults: .*there is no server:7`},
		{`"until": {}`, `"until": {"metric": "accuracy", "value": 7}`, `until: .*accuracy:7`},
		{`"until": {}`, `"until": {"metric": "time", "value": -7}`, `until: value is -7`},
		{`"until": {}`, `"until": {}, "delay": "soon"`, `delay, bandwidth: .*"soon"`},
		{`"until": {}`, `"until": {}, "scale": ["many"]`, `scale: .*"many"`},
		{`"until": {}`, `"until": {}, "zones": ["a/b"]`, `zones: invalid zone name "a/b"`},
		{`"sha256": "[0-9a-f]{8}`, `"sha256": "00000000`, `job: the seal does not match its settings`},
	} {
		must(t, os.WriteFile(file, edited(t, text, c.pattern, c.by), 0o666))
		for how, read := range map[string]func() (settings.Run, error){
			"from":   func() (settings.Run, error) { return (&settings.Flags{}).Repeat(file) },
			"resume": func() (settings.Run, error) { return clocks(30).Resume(dir) },
		} {
			_, err := read()
			if err == nil {
				t.Errorf("--%s accepts %s", how, c.by)
				continue
			}
			line := humanize.ErrorText(err)
			if !regexp.MustCompile(c.want).MatchString(line) || !strings.HasPrefix(line, file) ||
				strings.Contains(line, "\n") {
				t.Errorf("--%s with %s: %s; want one line with %s and %s", how, c.by, line, file, c.want)
			}
		}
	}
}

// TestResumeAlive: an active run cannot be resumed, and the error names its process.
func TestResumeAlive(t *testing.T) {
	dir := newFolder(t)
	p := start(t, small("--clocks", "1000000", "--out", dir)...)
	awaitCheckpoint(t, dir)
	wantRefused(t, exitUsage, fmt.Sprintf(`is still running, in pid %d since`, p.Process.Pid), "train", "--resume", dir)
	p.Kill()
	if _, err := (&settings.Flags{}).Resume(dir); err != nil {
		t.Errorf("after its death: %v", err)
	}
}

// TestChangedRunJSON: a worker that joins a job rejects a run.json that was changed since the job's start.
func TestChangedRunJSON(t *testing.T) {
	dir := newFolder(t)
	p := start(t, small("--clocks", "1000000", "--out", dir)...)
	file := filepath.Join(dir, "run.json")
	awaitCheckpoint(t, dir)
	text, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, edited(t, text, `"Batch": 8`, `"Batch": 9`), 0o666))
	wantOut(t, 0, []string{"fault", "kill:worker:1@0s", "--run", dir})
	if code, _, stderr := p.Wait(); code == 0 ||
		!strings.Contains(stderr, "sets params.Batch to 9, but the job began with 8") {
		t.Errorf("exit code %d and %q", code, stderr)
	}
}
