package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/rundir"
)

// readmeProgram builds the README's program with changes.
func readmeProgram(t *testing.T, changes ...func(source string) string) string {
	t.Helper()
	page, err := os.ReadFile("../../README.md")
	must(t, err)
	m := regexp.MustCompile("(?s)\n```go\n(package main\n.*?)```").FindSubmatch(page)
	if m == nil {
		t.Fatal("the README does not contain the program")
	}
	dir := t.TempDir()
	source, program := filepath.Join(dir, "main.go"), filepath.Join(dir, "mine")
	text := string(m[1])
	for _, change := range changes {
		text = change(text)
	}
	must(t, os.WriteFile(source, []byte(text), 0o666))
	if out, err := exec.Command("go", "build", "-o", program, source).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return program
}

// TestUpExec: the README's program runs in each slot and is restarted when it is killed.
func TestUpExec(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	wantOut(t, 0, []string{
		"up", "--workers", "2", "--clocks", "400", "--exec", readmeProgram(t), "--out", dir, "--fault",
		"kill:worker:1@clock:100", "--fault", "kill:server:0@clock:200", "--recovery", "resend:50",
	}, "worker:1 resumes at clock", "every worker has finished 400 clocks")
	s, err := rundir.ReadSummary(dir)
	must(t, err)
	if *s.UpdatesLost != 0 || *s.UpdatesApplied != 400*2*int64(s.Shards) || len(s.Failures) != 2 {
		t.Errorf("%d updates lost, %d applied, failures %+v", *s.UpdatesLost, *s.UpdatesApplied, s.Failures)
	}
	if s.ModelSHA256 == nil {
		t.Fatal("the summary has no model")
	}
	to := filepath.Join(t.TempDir(), "mine.safetensors")
	wantOut(t, 0, []string{"export", dir, "-o", to}, "model "+*s.ModelSHA256)
	model, err := os.ReadFile(to)
	must(t, err)
	if own, err := os.ReadFile(filepath.Join(dir, "model.safetensors")); err != nil || !bytes.Equal(own, model) {
		t.Errorf("the exported model differs from the run's: %v", err)
	}
	code, _, errs := invoke(t, "export", dir, "-o", to)
	if code != exitUsage || !strings.Contains(errs, "already exists") {
		t.Errorf("an existing file: exit code %d: %s", code, errs)
	}
}

// TestUpExecFails: a program that never works ends the job with an error that contains its last output.
func TestUpExecFails(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]string{
		"'/nonexistent'": "not found", "true": "ended with code 0", "false": "ended with code 1",
		`sh -c "echo no such file >&2; exit 3"`: "no such file",
	} {
		code, _, errs := invoke(t, "up", "--workers", "2", "--clocks", "50", "--exec", command, "--out", newFolder(t))
		if code != exitError || !strings.Contains(errs, "failed 5 times at clock 0") || !strings.Contains(errs, want) ||
			strings.Count(errs, "\n") != 1 {
			t.Errorf("%s: exit code %d: %s", command, code, errs)
		}
	}
	gone := newFolder(t)
	if code, _, errs := invoke(t, "up", "--exec", "/nonexistent x", "--out", gone); code != exitUsage ||
		!strings.Contains(errs, "--exec /nonexistent: no such file") {
		t.Errorf("a missing program: exit code %d: %s", code, errs)
	}
	if left, err := os.ReadDir(gone); err == nil {
		t.Errorf("a missing program leaves a directory with %v", left)
	}
	if code, _, errs := invoke(t, "up", "--workers", "2", "--exec", " "); code != exitUsage ||
		!strings.Contains(errs, "--exec is empty") {
		t.Errorf("an empty command: exit code %d: %s", code, errs)
	}
}
