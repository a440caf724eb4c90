package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/updatelog"
	"github.com/perdure/perdure/wire"
)

// TestLogLook lists, dumps and verifies a log while its process runs and when it
// does not, and finds a byte that the disk has changed.
func TestLogLook(t *testing.T) {
	run := t.TempDir()
	dir := filepath.Join(run, "log")
	s, err := updatelog.Serve(dir, updatelog.ServeOptions{})
	must(t, err)
	l, err := updatelog.Dial(t.Context(), s.URL(), updatelog.DialOptions{Options: updatelog.Options{Job: "first", Shards: 2}})
	must(t, err)
	frame := wire.Append(nil, &wire.Frame{Header: wire.Header{Kind: wire.KindTick, Slot: 3, Clock: 17, Incarnation: 1, Generation: 2}})
	frame = wire.Append(frame, &wire.Frame{Header: wire.Header{Kind: wire.KindUpdate, Slot: 3, Clock: 18, Clocks: 16, Incarnation: 1, Generation: 2, Parts: 2}})
	for _, e := range [][]byte{frame, []byte("something else to be found in the file")} {
		done := make(chan error, 1)
		must(t, l.Append(t.Context(), 1, [][]byte{e}, func(_ updatelog.Position, err error) { done <- err }))
		must(t, <-done)
	}
	must(t, l.Close())
	look := func() {
		t.Helper()
		wantOut(t, 0, []string{"log", "ls", run}, "first", "    1          1          2          2")
		wantOut(t, 0, []string{"log", "dump", run, "--shard", "1"}, "1 20", "tick slot 3 incarnation 1 clock 17 part 1/1 generation 2, 0 bytes; update slot 3 incarnation 1 clocks 18 to 33 part 1/2 generation 2, 0 bytes; resume from 2", "38 bytes; resume from 3")
		wantOut(t, 0, []string{"log", "verify", dir}, "job first shard 0: 0 records", "job first shard 1: 2 records, 2 entries")
	}
	look()
	wantOut(t, 0, []string{"log", "ls", "--nats", s.URL(), "--job", "first"}, "first")
	wantOut(t, 1, []string{"log", "ls", run, "--job", "second"}, "no streams of second")
	wantOut(t, 2, []string{"log", "dump", run, "--shard", "7"}, "no shard 7")
	wantOut(t, 2, []string{"log", "ls"}, "which log?")
	wantOut(t, 1, []string{"log", "ls", t.TempDir()}, "no log in")
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o666))
	wantOut(t, 1, []string{"log", "ls", file}, "perdure: "+file+" is a file; name the folder of a log, or of a run that has one\n")
	secret, at, _ := strings.Cut(s.URL(), "@")
	wantOut(t, 1, []string{"log", "ls", "--nats", "nats://other@" + at}, "perdure: the log at nats://"+at+" does not take these credentials\n")
	elsewhere := []string{"train", "--clocks", "3", "--recovery", "stateless", "--out", filepath.Join(t.TempDir(), "run"), "--nats"}
	wantOut(t, 1, append(elsewhere, "nats://other@"+at), "perdure: the log at nats://"+at+" does not take these credentials\n")
	wantOut(t, 1, append(elsewhere, secret+"@"+at, "--log-mb", "100000000"), "perdure: the log at nats://"+at+" has no room for stream", "MiB; give that log more room, or the job a smaller one (--log-mb)\n")
	text := fmt.Sprintf(`{"job": {"id": "first", "log": %q}, "log": {"mb": 100, "nats": %[1]q}}`, s.URL())
	must(t, os.WriteFile(filepath.Join(run, "run.json"), []byte(text), 0o666))
	if got, want := logLine(t.Context(), run), " MB of at most 104.9, in 2 streams, at nats://"+at; !strings.HasSuffix(got, want) {
		t.Errorf("a status says %q, not %q", got, want)
	}
	must(t, s.Close())
	look()

	changed := 0
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		must(t, err)
		if at := strings.Index(string(b), "something else"); at >= 0 {
			changed++
			b[at]++
			return os.WriteFile(path, b, 0o600)
		}
		return nil
	}))
	if changed != 1 {
		t.Fatalf("the entry was in %d files", changed)
	}
	wantOut(t, 1, []string{"log", "verify", run}, "job first shard 0: 0 records, 0 entries, 0.0 MB: whole\n", "job first shard 1: whole for 1 records\n",
		"perdure: record 2 of stream perdure-first-1 (shard 1) is damaged: ", "what follows cannot be replayed: bring a copy of the log back, or begin the job again\n")
}

// wantOut runs a command line and looks for texts in what it prints.
func wantOut(t *testing.T, code int, args []string, parts ...string) {
	t.Helper()
	got, stdout, stderr := invoke(t, args...)
	out := stdout + stderr
	if got != code {
		t.Errorf("%s ends with %d; want %d:\n%s", strings.Join(args, " "), got, code, out)
	}
	for _, p := range parts {
		if !strings.Contains(out, p) {
			t.Errorf("%s prints\n%s\nwithout %q", strings.Join(args, " "), out, p)
		}
	}
}

// TestLogKilled sees that what the log has acknowledged outlives its process, which
// is killed while it is written to.
func TestLogKilled(t *testing.T) {
	dir := t.TempDir()
	serve := func() (kill func()) {
		cmd, _, _ := command(t, "log", "--dir", dir)
		must(t, cmd.Start())
		return func() {
			must(t, cmd.Process.Kill())
			_ = cmd.Wait() // it was killed
		}
	}
	kill := serve()
	url := ""
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for deadline := time.Now().Add(patience); url == "" && time.Now().Before(deadline); <-look.C {
		url, _ = updatelog.ReadURL(dir) // there is none yet
	}
	l, err := updatelog.Dial(t.Context(), url, updatelog.DialOptions{Options: updatelog.Options{Job: "first", Shards: 1}})
	must(t, err)
	defer l.Close()
	const n = 400
	done := make(chan error, n)
	for i := range n {
		must(t, l.Append(t.Context(), 0, [][]byte{[]byte(fmt.Sprintf("%03d", i)), make([]byte, 100_000)}, func(_ updatelog.Position, err error) { done <- err }))
		if i == n/2 {
			must(t, <-done)
			kill()
			kill = serve()
		}
	}
	defer func() { kill() }()
	for range n - 1 {
		must(t, <-done)
	}
	next, enough := 0, errors.New("enough")
	err = l.Read(t.Context(), 0, updatelog.Oldest, func(e updatelog.Entry) error {
		var i int
		if _, err := fmt.Sscanf(string(e.Payload[:3]), "%d", &i); err != nil || i > next {
			t.Errorf("entry %d comes where %d is missing: %v", i, next, err)
		}
		if next = max(next, i+1); next == n {
			return enough
		}
		return nil
	}, nil)
	if err != enough {
		t.Error(err)
	}
}

// TestLogFrozen: a log process that is frozen for a moment goes on; one that is frozen for
// good is found silent, killed and replaced. Neither changes the model.
func TestLogFrozen(t *testing.T) {
	for fault, replaced := range map[string]int{"freeze:log@clock:20+300ms": 0, "freeze:log@clock:20": 1} {
		s, dir := trained(t, small("--recovery", "stateless", "--fault", fault)...)
		if got, want := *s.ModelSHA256, one(t); got != want {
			t.Errorf("%s: model %s, want %s\n%s", fault, got, want, logs(dir))
		}
		events, err := os.ReadFile(filepath.Join(dir, "events.jsonl"))
		must(t, err)
		for _, words := range []string{"log has been silent for too long; it is killed and replaced", "log is dead: killed by SIGKILL", "log serves again"} {
			if n := strings.Count(string(events), words); n != replaced {
				t.Errorf("%s: %d times it is said that %s, want %d\n%s", fault, n, words, replaced, events)
			}
		}
		if replaced > 0 {
			checkFailures(t, s, 1)
		}
	}
}

// TestLogOfRun: a run under stateless says how full its log is, and that its log died and
// is back; its process is listed; it is refused to be resumed, and a log that is too small for it is, too.
func TestLogOfRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run")
	_, _, end := begin(t, `(log serves again)`, "train", "--recovery", "stateless", "--shards", "2", "--log-mb", "100", "--clocks", "1000000", "--workers", "2",
		"--fault", "kill:log@clock:5", "--out", dir)
	wantOut(t, 0, []string{"status", "--run", dir}, "update log: ", " MB of at most 104.9, in 2 streams\n")
	second, out := regexp.MustCompile(`\n  log +pid [1-9]\d* +incarnation 2   live\n`), ""
	for deadline := time.Now().Add(patience); !second.MatchString(out); _, out, _ = invoke(t, "status", "--run", dir) {
		if time.Now().After(deadline) {
			t.Fatalf("the log's second process is not listed:\n%s", out)
		}
	}
	wantOut(t, 0, []string{"stop", "--run", dir})
	end()
	wantOut(t, 2, []string{"train", "--resume", dir, "--out", dir + "2"}, "perdure: "+dir+" was trained under stateless, which keeps no checkpoints, and its update log is of that run alone; begin anew with --from ")
	file := filepath.Join(dir, "run.json")
	b, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, []byte(strings.Replace(string(b), `"mb": 100`, `"mb": 1`, 1)), 0o666))
	wantOut(t, 2, []string{"train", "--from", file, "--out", dir + "3"}, "perdure: --log-mb 1; a log of 2 shards needs at least 64\n")
}
