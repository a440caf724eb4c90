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

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
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

// awaitEvent waits until a run's record has so many events with these words.
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
	return small(append(more, "--clocks", "1000000", "--until", "loss:1e-9", "--eval-every", "1000000", "--fault", fault, "--out", dir)...)
}

// TestServerJoins: a server of no parent's waits for a place, takes that of one
// that died and is not replaced, and the job goes on to the same model.
func TestServerJoins(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	_, done := start(t, small("--no-replace", "--compute-ms", "5", "--fault", "kill:server:1@clock:20", "--out", dir)...)
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
		worker, left := start(t, "worker", "--join", strings.TrimSpace(string(control)), "--secret-file", filepath.Join(dir, secrets.File))
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

// TestJoinMistakes: who cannot join hears why, in one line.
func TestJoinMistakes(t *testing.T) {
	dir, other := filepath.Join(t.TempDir(), "run"), t.TempDir()
	job, done := start(t, joinable(dir, "slow*2:worker:0@1h")...)
	coordinator := awaitStatus(t, dir, `to be joined at (\S+)`)[1]
	must(t, os.WriteFile(filepath.Join(other, "run.json"), []byte(`{"job":{"id":"0123456789abcdef"}}`), 0o666))
	file := " --secret-file " + filepath.Join(dir, secrets.File)
	for args, want := range map[string]string{
		"worker --join " + coordinator:                            `asks for its secret; .* --secret-file`,
		"server --join " + coordinator + file:                     `folder is not on this machine, and its servers keep checkpoints there; .* --run`,
		"worker --join " + coordinator + file:                     `folder is not on this machine, and what its workers train`,
		"worker --join " + coordinator + file + " --run " + other: `is the folder of job 0123456789abcdef; the job at`,
	} {
		if code, out, errs := invoke(t, strings.Fields(args)...); code != exitUsage || !regexp.MustCompile(want).MatchString(errs) || strings.Count(errs, "\n") != 1 {
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

// TestShardLines: status says who holds the shards, as shortly as it can.
func TestShardLines(t *testing.T) {
	chain := func(servers ...int) (s perdurelib.ShardView) {
		s.Server = servers[0]
		for _, n := range servers[1:] {
			s.Followers = append(s.Followers, perdurelib.Holder{Server: n})
		}
		return s
	}
	joined := chain(2, 0)
	joined.Joining = &perdurelib.Holder{Server: 3}
	v := perdurelib.View{Shards: []perdurelib.ShardView{chain(0, 1, 2), chain(0, 1, 2), joined, chain(0, 1, 2), chain(1), chain(-1), chain(0, 1, 2), chain(0, 1, 2)}}
	got, want := strings.Join(shardLines(&v), "\n"), `shards 0-1 3 6-7: head server:0, follower server:1, tail server:2
shards 2: head server:2, tail server:0; joining server:3
shards 4: head server:1
shards 5: nobody yet`
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	for _, c := range []struct {
		shards []perdurelib.ShardView
		copies int
		whole  bool
	}{
		{nil, 1, false},
		{[]perdurelib.ShardView{chain(0), chain(1)}, 1, true},
		{[]perdurelib.ShardView{chain(0), chain(-1)}, 1, false},
		{[]perdurelib.ShardView{chain(0, 1), chain(1, 2)}, 2, true},
		{[]perdurelib.ShardView{chain(0, 1), chain(1)}, 2, false},
		{[]perdurelib.ShardView{chain(0, 1), joined}, 2, false},
	} {
		if got := whole(&perdurelib.View{Shards: c.shards}, c.copies); got != c.whole {
			t.Errorf("%d copies of %+v are whole: %t", c.copies, c.shards, got)
		}
	}
}

// Status says of each worker what it keeps and goes on without, and of the job which
// checkpoint there is.
func TestHeldAndSaved(t *testing.T) {
	for want, p := range map[string]control.Process{
		"":                          {},
		", keeps 3.4 MB of updates": {KeptBytes: 3_400_000},
		", shards 0-1 5 out for 2.5 s, 0.5 MB queued": {Outage: &perdurelib.WorkerOutage{Shards: []perdurelib.ShardID{0, 1, 5}, Seconds: 2.5, Bytes: 500_000}},
	} {
		if got := heldLine(&p); got != want {
			t.Errorf("%+v: %q, want %q", p, got, want)
		}
	}
	for _, c := range []struct {
		recovery string
		saving   *perdurelib.Saving
		want     string
	}{
		{"chain:2", nil, ""},
		{"resend:20", nil, "last checkpoint: clock 40"},
		{"resend:auto", &perdurelib.Saving{}, "last checkpoint: clock 40; how often is not chosen yet"},
		{"checkpoint:auto", &perdurelib.Saving{Interval: 2.5, Why: "Young"}, "last checkpoint: clock 40; every 2.5 s, Young"},
		{"checkpoint:auto", &perdurelib.Saving{Interval: 12345.6, Why: "Young"}, "last checkpoint: clock 40; every 12346 s, Young"},
	} {
		r, err := perdurelib.ParseRecovery(c.recovery)
		must(t, err)
		if got := savedLine(&control.Status{Recovery: r, Saving: c.saving}, 40); got != c.want {
			t.Errorf("%s: %q, want %q", c.recovery, got, c.want)
		}
	}
}
