package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/plain"
	"github.com/perdure/perdure/internal/run/secrets"
)

// start starts a command that is waited for later.
func start(t *testing.T, args ...string) (cmd *exec.Cmd, end func() (code int, stdout, stderr string)) {
	t.Helper()
	cmd, out, errs := command(t, args...)
	must(t, cmd.Start())
	return cmd, func() (int, string, string) {
		code := exitCode(t, cmd.Wait())
		return code, out.String(), errs.String()
	}
}

// awaitStatus asks a run for its status until it matches.
func awaitStatus(t *testing.T, dir, pattern string) (match []string) {
	t.Helper()
	var out, errs string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); {
		_, out, errs = invoke(t, "status", "--run", dir)
		if match = regexp.MustCompile(pattern).FindStringSubmatch(out); match != nil {
			return match
		}
	}
	t.Fatalf("status does not come to say %s: %s%s", pattern, out, errs)
	return nil
}

// awaitEvent waits until a run's record has n events with these words.
func awaitEvent(t *testing.T, dir, words string, times int) {
	t.Helper()
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-look.C {
		text, _ := os.ReadFile(filepath.Join(dir, "events.jsonl")) // it may not be there yet
		if strings.Count(string(text), words) >= times {
			return
		}
	}
	t.Fatalf("nobody tells %d times that %s\n%s", times, words, logs(dir))
}

// joinable are the flags of a small job that does not end before somebody joins.
func joinable(dir, fault string, more ...string) []string {
	return small(append(more, "--clocks", "1000000", "--until", "loss:1e-9", "--eval-every", "1000000", "--fault",
		fault, "--out", dir)...)
}

// TestServerJoins: a server of no parent's waits for a place, takes that of one
// that died and is not replaced, and the job goes on to the same model.
func TestServerJoins(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	_, done := start(t, small("--no-replace", "--compute-ms", "5", "--fault", "kill:server:1@clock:20", "--out",
		dir)...)
	coordinator := awaitStatus(t, dir, `to be joined at (\S+)\n(?s:.*)server:1 .* live `)[1]
	_, left := start(t, "server", "--join", coordinator, "--run", dir, "--zone", "rack-a")
	code, out, errs := done()
	if code != 0 {
		t.Fatalf("exit code %d: %s%s%s", code, out, errs, logs(dir))
	}
	if s := summary(t, dir); *s.ModelSHA256 != one(t) {
		t.Errorf("model %s, want %s", *s.ModelSHA256, one(t))
	}
	if code, out, errs := left(); code != 0 || !strings.Contains(out, "joined") {
		t.Errorf("the server ended with code %d: %s%s", code, out, errs)
	}
	events, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
	must(t, err)
	if !strings.Contains(string(events), "server:1 killed by SIGKILL, and is not replaced") {
		t.Errorf("the run does not say that it replaces no server:\n%s", events)
	}
}

// TestWorkerJoins: a worker takes a slot that nobody works in; on SIGTERM it tells
// that it leaves, and another goes on in its place at once.
func TestWorkerJoins(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	job, done := start(t, joinable(dir, "kill:worker:1@clock:20+1h")...)
	awaitEvent(t, dir, "worker:1 is dead", 1)
	control, err := os.ReadFile(filepath.Join(dir, "control"))
	must(t, err)
	for i := range 2 {
		worker, left := start(t, "worker", "--join", strings.TrimSpace(string(control)), "--secret-file",
			filepath.Join(dir, secrets.File))
		awaitStatus(t, dir, fmt.Sprintf(`worker:1 +pid %d .* live +clock [1-9]`, worker.Process.Pid))
		must(t, worker.Process.Signal(syscall.SIGTERM))
		if code, out, errs := left(); code != 0 {
			t.Errorf("the worker ended with code %d: %s%s", code, out, errs)
		}
		awaitEvent(t, dir, "worker:1 is dead: it left", i+1)
	}
	must(t, job.Process.Signal(os.Interrupt))
	if code, _, errs := done(); code != exitSignal {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// TestJoinMistakes: a process that cannot join says why, in one line.
func TestJoinMistakes(t *testing.T) {
	dir, other := filepath.Join(t.TempDir(), "run"), t.TempDir()
	job, done := start(t, joinable(dir, "slow*2:worker:0@1h")...)
	coordinator := awaitStatus(t, dir, `to be joined at (\S+)`)[1]
	must(t, os.WriteFile(filepath.Join(other, "run.json"), []byte(`{"job":{"id":"0123456789abcdef"}}`), 0o666))
	file := " --secret-file " + filepath.Join(dir, secrets.File)
	for args, want := range map[string]string{
		"worker --join " + coordinator: `asks for its secret; .* --secret-file`,
		"server --join " + coordinator + file: `folder is not on this machine, and its servers ` +
			`keep checkpoints there; .* --run`,
		"worker --join " + coordinator + file: `folder is not on this machine, and what its ` +
			`workers train`,
		"worker --join " + coordinator + file + " --run " + other: `is the folder of job 0123456789abcdef; the job at`,
	} {
		if code, out, errs := invoke(t, strings.Fields(args)...); code != exitUsage ||
			!regexp.MustCompile(want).MatchString(errs) || strings.Count(errs, "\n") != 1 {
			t.Errorf("perdure %s: exit code %d: %s%s; want %s", args, code, out, errs, want)
		}
	}
	must(t, job.Process.Signal(os.Interrupt))
	done()
}

// TestGivenUp: of a job that its coordinator gave up people read the coordinator's
// words alone.
func TestGivenUp(t *testing.T) {
	err := errors.Join(fmt.Errorf("%w: no replica of shard 3 is left", supervisor.ErrFailed), nil)
	if got := plain.Text(err); got != "no replica of shard 3 is left" {
		t.Errorf("told as %q", got)
	}
	if code := report(t.Context(), err); code != exitError {
		t.Errorf("exit code %d, want %d", code, exitError)
	}
}
