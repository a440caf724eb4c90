package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/logserver"
	"github.com/perdure/perdure/internal/run/checkpoints"
	"github.com/perdure/perdure/internal/run/metrics"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestLogLook dumps and verifies a log, both while its process runs and after its end, and detects a byte that changed
// on disk.
func TestLogLook(t *testing.T) {
	t.Parallel()
	run := t.TempDir()
	dir := filepath.Join(run, "log")
	s, err := logserver.Serve(dir, logserver.ServeOptions{})
	must(t, err)
	l, err := updatelog.Dial(t.Context(), s.URL(),
		updatelog.DialOptions{Options: updatelog.Options{Job: "first", Shards: 2}})
	must(t, err)
	frame := wire.Append(nil, &wire.Frame{Header: wire.Header{
		Kind: wire.KindTick, Slot: 3, Clock: 17, Incarnation: 1,
		Generation: 2,
	}})
	frame = wire.Append(frame, &wire.Frame{Header: wire.Header{
		Kind: wire.KindUpdate, Slot: 3, Clock: 18, Clocks: 16,
		Incarnation: 1, Generation: 2, Parts: 2,
	}})
	for _, e := range [][]byte{frame, []byte("something else to be found in the file")} {
		done := make(chan error, 1)
		must(t, l.Append(t.Context(), 1, [][]byte{e}, func(_ updatelog.Position, err error) { done <- err }))
		must(t, <-done)
	}
	must(t, l.Close())
	look := func() {
		t.Helper()
		wantOut(t, 0, []string{"log", "dump", run, "--shard", "1"}, "1 20",
			"tick slot 3 incarnation 1 clock 17 part 1/1 generation 2, 0 bytes; update slot 3 incarnation 1 clocks "+
				"18 to 33 part 1/2 generation 2, 0 bytes; resume from 2", "38 bytes; resume from 3")
		wantOut(t, 0, []string{"log", "verify", dir}, "job first shard 0: 0 records",
			"job first shard 1: 2 records, 2 entries")
	}
	look()
	wantOut(t, 0, []string{"log", "verify", s.URL(), "--job", "first"}, "first")
	wantOut(t, 1, []string{"log", "verify", run, "--job", "second"}, "no streams for second")
	wantOut(t, 2, []string{"log", "dump", run, "--shard", "7"}, "no shard 7")
	wantOut(t, 2, []string{"log", "verify"}, "no log given")
	wantOut(t, 1, []string{"log", "verify", t.TempDir()}, "no log in")
	file := filepath.Join(t.TempDir(), "file")
	must(t, os.WriteFile(file, nil, 0o666))
	wantOut(t, 1, []string{"log", "verify", file}, "perdure: "+file+
		" is a file; specify the directory of a log, or of a run with a log\n")
	secret, at, _ := strings.Cut(s.URL(), "@")
	wantOut(t, 1, []string{"log", "verify", "nats://other@" + at},
		"perdure: the log at nats://"+at+" does not accept these credentials\n")
	elsewhere := []string{
		"train", "--clocks", "3", "--recovery", "stateless", "--out",
		newFolder(t), "--log",
	}
	wantOut(t, 1, append(elsewhere, "nats://other@"+at),
		"perdure: the log at nats://"+at+" does not accept these credentials\n")
	wantOut(t, 1, append(elsewhere, secret+"@"+at+"?mb=100000000"),
		"perdure: the log at nats://"+at+" does not have enough space for stream",
		"MiB; raise that log's limit, or make the stream smaller (mb in --log)\n")
	text := fmt.Sprintf(`{"schema": 1, "job": {"id": "first", "log": %q}, "log": {"mb": 100, "nats": %[1]q}}`, s.URL())
	must(t, os.WriteFile(filepath.Join(run, "run.json"), []byte(text), 0o666))
	if got, want := checkpoints.LogLine(t.Context(), run), " MB of at most 104.9, in 2 streams, at nats://"+
		at; !strings.HasSuffix(got, want) {
		t.Errorf("the status line is %q, want the suffix %q", got, want)
	}
	must(t, s.Close())
	look()

	changeByte(t, dir, "something else")
	wantOut(t, 1, []string{"log", "verify", run}, "job first shard 0: 0 records, 0 entries, 0.0 MB: intact\n",
		"job first shard 1: damaged after 1 records\n",
		"perdure: record 2 of stream perdure-first-1 (shard 1) is damaged: ",
		"later records cannot be replayed: restore a copy of the log, or start the job again\n")
}

// changeByte changes the first byte of a text that occurs in one file of a directory.
func changeByte(t *testing.T, dir, text string) {
	t.Helper()
	changed := 0
	must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || !d.Type().IsRegular() {
			return err
		}
		b, err := os.ReadFile(path)
		must(t, err)
		if at := strings.Index(string(b), text); at >= 0 {
			changed++
			b[at]++
			return os.WriteFile(path, b, 0o600)
		}
		return nil
	}))
	if changed != 1 {
		t.Fatalf("the text is in %d files, want 1", changed)
	}
}

// TestLogKilled: acknowledged records survive when the log process is killed during writes. The process also serves
// metrics.
func TestLogKilled(t *testing.T) {
	t.Parallel()
	dir, watched := t.TempDir(), reserved(t)
	p := start(t, "log", "--dir", dir, "--metrics", watched)
	url := ""
	await(t, func() bool {
		url, _ = updatelog.ReadURL(dir) // the file may not exist yet
		return url != ""
	}, func() string { return "the log does not write its address" })
	l, err := updatelog.Dial(t.Context(), url,
		updatelog.DialOptions{Options: updatelog.Options{Job: "first", Shards: 1}})
	must(t, err)
	defer l.Close()
	const n = 400
	done := make(chan error, n)
	for i := range n {
		must(t, l.Append(t.Context(), 0, [][]byte{[]byte(fmt.Sprintf("%03d", i)), make([]byte, 100_000)},
			func(_ updatelog.Position, err error) { done <- err }))
		if i == n/2 {
			must(t, <-done)
			p.Kill()
			p = start(t, "log", "--dir", dir, "--metrics", watched)
		}
	}
	for range n - 1 {
		must(t, <-done)
	}
	next, enough := 0, errors.New("enough")
	err = l.Read(t.Context(), 0, updatelog.Oldest, func(e updatelog.Entry) error {
		var i int
		if _, err := fmt.Sscanf(string(e.Payload[:3]), "%d", &i); err != nil || i > next {
			t.Errorf("entry %d follows although entry %d is missing: %v", i, next, err)
		}
		if next = max(next, i+1); next == n {
			return enough
		}
		return nil
	}, nil)
	if err != enough {
		t.Error(err)
	}
	awaitReady(t, dir, watched, true)
	got := values(t, watched)
	for _, m := range metrics.All()["log"] {
		if v, shown := got[m.Name]; !shown || v == 0 && m.Name != "perdure_log_full" {
			t.Errorf("the log's metric is %v: %s", v, m.Name)
		}
	}
	if got["perdure_log_stored_bytes"] < n*100_000 || got["perdure_log_full"] != 0 || got["perdure_healthy"] != 1 {
		t.Errorf("the log's metrics are %v", got)
	}
}

// TestLogOfRun: a stateless run reports how full its log is, and the death and restart of its log process. The status
// lists the process. A log that is too small for the run is rejected.
func TestLogOfRun(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	p := start(t, "train", "--recovery", "stateless", "--shards", "2", "--log", "file:?mb=100",
		"--clocks", "1000000", "--workers", "2",
		"--fault", "kill:log@clock:5", "--out", dir)
	p.Says(`log serves again`)
	wantOut(t, 0, []string{"status", "--run", dir}, "update log: ", " MB of at most 104.9, in 2 streams\n")
	awaitStatus(t, dir, `\n  log +pid [1-9]\d* +incarnation 2   live\n`)
	wantOut(t, 0, []string{"stop", "--run", dir})
	p.Wait()
	wantOut(t, 0, []string{"log", "verify", dir}, " shard 0: ", " shard 1: ", " MB: intact\n")
	file := filepath.Join(dir, "run.json")
	b, err := os.ReadFile(file)
	must(t, err)
	must(t, os.WriteFile(file, []byte(strings.Replace(string(b), `"mb": 100`, `"mb": 1`, 1)), 0o666))
	wantOut(t, 2, []string{"train", "--from", file, "--out", dir + "3"},
		"perdure: "+file+": log.mb is 1; a log of 2 shards needs at least 64\n")
}

// runWithLog creates the directory of a run with two shards, snapshots and a log, which is served.
func runWithLog(t *testing.T) (whole string) {
	t.Helper()
	whole = t.TempDir()
	s, err := logserver.Serve(settings.LogFolder(whole), logserver.ServeOptions{})
	must(t, err)
	t.Cleanup(func() { must(t, s.Close()) })
	about := settings.Run{Log: &settings.Log{MB: 64}}
	about.Job = perdure.JobSpec{
		ID: "first", Shards: 2, Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery: perdure.Recovery{Kind: perdure.RecoverStateless},
	}
	b, err := rundir.EncodeRun(about)
	must(t, err)
	must(t, os.WriteFile(filepath.Join(whole, "run.json"), b, 0o666))
	wantOut(t, 1, []string{"log", "verify", whole},
		"job first shard 1: damaged after 0 records\n"+
			"perdure: stream perdure-first-0: it is gone, with all of its records; ")
	l, err := updatelog.Dial(t.Context(), s.URL(),
		updatelog.DialOptions{Options: updatelog.Options{Job: "first", Shards: 2}})
	must(t, err)
	for range 3 {
		for shard := range 2 {
			done := make(chan error, 1)
			must(t, l.Append(t.Context(), shard, [][]byte{[]byte("text")},
				func(_ updatelog.Position, err error) { done <- err }))
			must(t, <-done)
		}
	}
	must(t, l.Trim(t.Context(), 0, 2))
	must(t, l.Close())
	must(t, os.Mkdir(settings.SnapshotFolder(whole), 0o777))
	for _, name := range []string{
		"s00000-p00000000000000000002-g000000-e000001",
		"s00000-p00000000000000000004-g000000-e000001", "s00001-p00000000000000000003-g000000-e000001",
	} {
		must(t, os.WriteFile(filepath.Join(settings.SnapshotFolder(whole), name+".snapshot"), nil, 0o666))
	}
	return whole
}

// soundStreams are parts of verify's output for the undamaged log.
var soundStreams = []string{"shard 0: 2 records, 2 entries, 0.0 MB: intact\n", "shard 1: 3 records, 3 entries, "}

// lacking maps kinds of damage to that run's log to the error that verify must report.
var lacking = map[string]struct {
	damage func(dir string) error
	want   string
}{
	"whole": {func(string) error { return nil }, ""},
	"the last stream gone": {
		func(dir string) error { return os.RemoveAll(logStream(dir, 1)) },
		"stream perdure-first-1: it is gone, with all of its records; ",
	},
	"no log at all": {func(dir string) error {
		return os.RemoveAll(filepath.Join(settings.LogFolder(dir),
			"jetstream"))
	}, "stream perdure-first-0: it is gone, with all of its records; "},
	"its file empty": {
		func(dir string) error { return os.Truncate(filepath.Join(logStream(dir, 1), "msgs", "1.blk"), 0) },
		"stream perdure-first-1: snapshot s00001-p00000000000000000003-g000000-e000001.snapshot contains all " +
			"updates before " +
			"record 3, but the stream ends before record 1; ",
	},
	"that, and no snapshots": {
		func(dir string) error {
			return errors.Join(os.Truncate(filepath.Join(logStream(dir, 1), "msgs", "1.blk"), 0),
				os.Remove(filepath.Join(settings.SnapshotFolder(dir),
					"s00001-p00000000000000000003-g000000-e000001.snapshot")))
		},
		"stream perdure-first-1: it is empty, but streams of other shards are not; ",
	},
	"the newest snapshot older": {
		func(dir string) error {
			at := filepath.Join(settings.SnapshotFolder(dir), "s00000-p0000000000000000000")
			return errors.Join(os.Remove(at+"2-g000000-e000001.snapshot"),
				os.Rename(at+"4-g000000-e000001.snapshot", at+"1-g000000-e000001.snapshot"))
		},
		"stream perdure-first-0: the newest snapshot, s00000-p00000000000000000001-g000000-e000001.snapshot, " +
			"contains all updates before record 1, but the stream begins with record 2; ",
	},
	"no snapshots": {
		func(dir string) error { return os.RemoveAll(settings.SnapshotFolder(dir)) },
		"stream perdure-first-0: it begins with record 2, but no snapshot contains the updates before it; ",
	},
}

func logStream(run string, shard int) string {
	return filepath.Join(settings.LogFolder(run), "jetstream/$G/streams", fmt.Sprintf("perdure-first-%d", shard))
}

// TestLogOfRunLooked inspects the log of a run with snapshots whose process was killed. Records that its streams lack,
// but that the run's directory refers to, are damage. The directory stays unchanged.
func TestLogOfRunLooked(t *testing.T) {
	t.Parallel()
	whole := runWithLog(t)
	wantOut(t, 0, []string{"log", "verify", whole}, soundStreams...) // while the log is served
	for name, c := range lacking {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.CopyFS(dir, os.DirFS(whole)))
			must(t, c.damage(dir))
			code, decision := 1, []string{
				"perdure: " + c.want + "its records cannot be replayed: restore a copy of the log, or start the job " +
					"again\n",
			}
			if c.want == "" {
				code, decision = 0, soundStreams
			}
			before := t.TempDir()
			must(t, os.CopyFS(before, os.DirFS(dir)))
			for range 2 {
				wantOut(t, code, []string{"log", "verify", dir}, decision...)
			}
			sameFiles(t, before, dir)
		})
	}
}

// TestLogDumpMost: dump shows at most the requested number of records and rejects 0.
func TestLogDumpMost(t *testing.T) {
	whole := runWithLog(t)
	wantOut(t, 2, []string{"log", "dump", whole, "--shard", "0", "--most=-1"},
		"perdure: invalid --most -1; choose 1 or more, or omit it to see all\n")
	wantOut(t, 2, []string{"log", "dump", whole, "--shard", "0", "--most", "0"},
		"perdure: invalid --most 0; choose 1 or more")
	if _, out, _ := invoke(t, "log", "dump", whole, "--shard", "0", "--most", "1"); strings.Count(out,
		"producer") != 1 {
		t.Errorf("want one record, got:\n%s", out)
	}
	must(t, os.WriteFile(filepath.Join(whole, "run.json"), []byte("{"), 0o666))
	wantOut(t, 2, []string{"log", "verify", whole}, "run.json is not a run's settings file: ",
		"; to inspect the log without this file, specify the directory "+settings.LogFolder(whole)+"\n")
	wantOut(t, 0, []string{"log", "verify", settings.LogFolder(whole)}, soundStreams...)
}

// sameFiles checks that two directories have the same contents.
func sameFiles(t *testing.T, one, other string) {
	t.Helper()
	files := 0
	for _, dir := range []string{one, other} {
		must(t, filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			name, err := filepath.Rel(dir, path)
			must(t, err)
			a, err := os.ReadFile(filepath.Join(one, name))
			must(t, err)
			b, err := os.ReadFile(filepath.Join(other, name))
			must(t, err)
			if files++; string(a) != string(b) {
				t.Errorf("%s differs", name)
			}
			return nil
		}))
	}
	if files == 0 {
		t.Error("the directories are empty")
	}
}
