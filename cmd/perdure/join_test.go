package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/humanize"
)

// joinable returns the flags of a small job that does not end before another process joins.
func joinable(dir, fault string, more ...string) []string {
	return small(append(more, "--clocks", "1000000", "--until", "loss:1e-9", "--eval-every", "1000000", "--fault",
		fault, "--out", dir)...)
}

// TestServerJoins: a server without a supervisor waits for a vacant index and takes that of a dead server that is not
// replaced. The job continues to the same model.
func TestServerJoins(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job := start(t, append(endless(dir), "--no-replace", "--grace", "1h")...)
	coordinator := awaitStatus(t, dir, `join it at (\S+)\n(?s:.*)server:1 .* live `)[1]
	server := start(t, "server", "--join", coordinator, "--run", dir, "--zone", "rack-a")
	wantOut(t, 0, []string{"fault", "--run", dir, "kill:server:1@0s"}, "planned")
	server.Says("joined")
	awaitEvent(t, dir, "server:1 killed by SIGKILL, and is not replaced", 1)
	if code, _, errs := job.Stop(); code != exitSignal {
		t.Errorf("exit code %d: %s", code, errs)
	}
	if code, out, errs := server.Wait(); code != 0 {
		t.Errorf("the server ended with code %d: %s%s", code, out, errs)
	}
	resumesWell(t, dir)
}

// TestWorkerJoins: a worker takes a vacant slot. On SIGTERM it announces that it leaves, and another worker takes the
// slot immediately.
func TestWorkerJoins(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job := start(t, joinable(dir, "kill:worker:1@clock:20+1h")...)
	awaitEvent(t, dir, "worker:1 is dead", 1)
	coordinator := awaitStatus(t, dir, `join it at (\S+)\n`)[1]
	for i := range 2 {
		worker := start(t, "worker", "--join", coordinator, "--secret-file", secretOf(dir))
		awaitStatus(t, dir, fmt.Sprintf(`worker:1 +pid %d .* live +clock [1-9]`, worker.Process.Pid))
		worker.Signal(syscall.SIGTERM)
		if code, out, errs := worker.Wait(); code != 0 {
			t.Errorf("the worker ended with code %d: %s%s", code, out, errs)
		}
		awaitEvent(t, dir, "worker:1 gave up its slot", i+1)
	}
	if code, _, errs := job.Stop(); code != exitSignal {
		t.Errorf("exit code %d: %s", code, errs)
	}
}

// TestJoinMistakes: a process that cannot join reports the reason in one line.
func TestJoinMistakes(t *testing.T) {
	dir, other := newFolder(t), t.TempDir()
	job := start(t, joinable(dir, "slow*2:worker:0@1h")...)
	// After all processes have read run.json.
	coordinator := awaitStatus(t, dir, `join it at (\S+)\n(?s:.*)worker:2 +pid \d+ .* live `)[1]
	must(t, os.WriteFile(filepath.Join(other, "run.json"), []byte(`{"schema":1,"job":{"id":"0123456789abcdef"}}`),
		0o666))
	file := " --secret-file " + secretOf(dir)
	must(t, os.Rename(filepath.Join(dir, "run.json"), filepath.Join(dir, "aside"))) // as on another machine
	for args, want := range map[string]string{
		"worker --join " + coordinator: `requires its secret; .* --secret-file`,
		"server --join " + coordinator + file: `directory is not on this machine, and its servers ` +
			`keep checkpoints in it; .* --run`,
		"worker --join a:1,b" + file:                              `--join a:1,b: invalid address "b"; write HOST:PORT`,
		"worker --join " + coordinator + file + " --run " + other: `the directory of job 0123456789abcdef, but`,
	} {
		wantRefused(t, exitUsage, want, strings.Fields(args)...)
	}
	wantRefused(t, exitError, `all worker slots are taken`, // it knows what it would train
		strings.Fields("worker --join "+coordinator+file)...)
	job.Stop()
}

// TestGivenUp: when the coordinator gives up a job, the user sees only the coordinator's message.
func TestGivenUp(t *testing.T) {
	err := errors.Join(fmt.Errorf("%w: no replica of shard 3 is left", supervisor.ErrFailed), nil)
	if got := humanize.ErrorText(err); got != "no replica of shard 3 is left" {
		t.Errorf("the message is %q", got)
	}
	if code := reportError(t.Context(), err); code != exitError {
		t.Errorf("exit code %d, want %d", code, exitError)
	}
}
