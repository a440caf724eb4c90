package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/proc/logserver"
	"github.com/perdure/perdure/internal/run/settings"
)

// killedStateless returns the directory of a stateless run whose supervisor was killed together with all its processes.
func killedStateless(t *testing.T, consistency string, more ...string) (dir string) {
	t.Helper()
	dir = newFolder(t)
	p := start(t, append(endless(dir), append(more, "--recovery", "stateless", "--consistency", consistency,
		"--log", "file:?snapshot-mb=1", "--scale", "4@clock:20")...)...)
	p.Says("fault: slow")
	snapshots, err := stateless(t, dir).OpenSnapshots(t.Context(), dir)
	must(t, err)
	await(t, func() bool {
		all, err := snapshots.List("s")
		return err == nil && len(all) == 2*6
	}, func() string { return "a shard has fewer than two snapshots\n" + logs(dir) })
	p.Kill()
	await(t, func() bool { // its processes may live for a moment longer
		lock, err := disk.LockShared(filepath.Join(settings.LogFolder(dir), "lock"))
		if err == nil {
			must(t, lock.Close())
		}
		return err == nil
	}, func() string { return "its log process does not end" })
	return dir
}

func stateless(t *testing.T, dir string) *settings.Run {
	t.Helper()
	s, err := settings.Read(filepath.Join(dir, "run.json"))
	must(t, err)
	return &s
}

// resumesAt returns the clock from which a run resumes, and the highest clock of its slots.
func resumesAt(t *testing.T, dir string) (from, furthest int64) {
	t.Helper()
	a := clocks(1_000_000)
	a.Store, a.Given["store"] = "file:///nowhere", true
	s, err := a.Resume(dir)
	must(t, err)
	return int64(s.Checkpoints.Ended.Cut), int64(s.Checkpoints.Ended.Furthest)
}

// TestStatelessResumed: after all processes are gone, the next run resumes from the update log with another number of
// servers and with all active slots. A third run resumes from that one. No update is lost or counted twice. Under bsp
// the model is that of a run that never stopped. Snapshots are stored where --store says.
func TestStatelessResumed(t *testing.T) {
	t.Parallel()
	for _, c := range brief(2, []struct{ consistency, store string }{
		{"bsp", "file://" + filepath.ToSlash(filepath.Join(t.TempDir(), "store"))},
		{"asp", ""},
		{"ssp:2", ""},
		{"bsp", ""},
	}) {
		t.Run(c.consistency+c.store, func(t *testing.T) {
			t.Parallel()
			at := func(place string) (flag []string) {
				if c.store != "" {
					flag = []string{"--store", c.store + place}
				}
				return flag
			}
			dir := killedStateless(t, c.consistency, at("")...)
			from, furthest := resumesAt(t, dir)
			first, last := furthest+50, furthest+70
			again := func(dir string, clocks int64, more ...string) []string {
				return append([]string{"train", "--quiet", "--resume", dir, "--clocks", fmt.Sprint(clocks)}, more...)
			}
			if furthest < 20 { // under asp, a slot may still be before that clock
				t.Errorf("it resumes from clocks %d to %d, want 20 or later", from, furthest)
			}
			s, to := trained(t, again(dir, first, append(at("2"), "--servers", "3", "--fault",
				fmt.Sprintf("kill:server:2@clock:%d", from+10))...)...)
			s, _ = trained(t, again(to, last, at("3")...)...)
			if want := int64(s.Shards) * (4*last - 20); *s.UpdatesApplied != want || *s.UpdatesLost != 0 ||
				s.Servers != 3 || int64(s.Clocks) != last {
				t.Errorf("%d clocks, %d servers, %d updates applied and %d lost, of %d", s.Clocks, s.Servers,
					*s.UpdatesApplied, *s.UpdatesLost, want)
			}
			if c.consistency == "bsp" {
				want := one(t, "--clocks", fmt.Sprint(last), "--scale", "4@clock:20", "--recovery", "none")
				sameModel(t, s, want, dir)
			}
			if files, err := filepath.Glob(filepath.Join(to, "snapshots", "*")); (len(files) > 0) != (c.store == "") {
				t.Errorf("the run's snapshot directory contains %v (%v)", files, err)
			}
		})
	}
}

// TestStatelessNotResumed: a run that cannot resume reports the reason in one line and leaves no files. A damaged
// snapshot is skipped in favour of the previous one.
func TestStatelessNotResumed(t *testing.T) {
	t.Parallel()
	dir := killedStateless(t, "bsp")
	from, _ := resumesAt(t, dir)
	refused := func(pattern string, more ...string) {
		t.Helper()
		to := newFolder(t)
		wantRefused(t, exitError, pattern, append([]string{
			"train", "--resume", dir, "--clocks", "1000000", "--out",
			to,
		}, more...)...)
		if _, err := os.Stat(to); err == nil {
			t.Error("a rejected run leaves a directory")
		}
	}
	wantRefused(t, exitUsage, "only stateless can resume from a log", "train", "--resume", dir,
		"--clocks",
		"1000000", "--recovery", "resend:5")
	wantRefused(t, exitUsage, "--shards cannot be changed with --resume", "train", "--resume", dir, "--shards", "2")
	wantRefused(t, exitUsage, fmt.Sprintf("is already at clock %d", from), "train", "--resume", dir, "--clocks",
		fmt.Sprint(from))
	run := fileOf(t, dir, "run.json")
	other := strings.Replace(run, `"Batch": 8`, `"Batch": 9`, 1)
	must(t, os.WriteFile(filepath.Join(dir, "run.json"), []byte(other), 0o666))
	wantRefused(t, exitUsage, "run.json sets params.Batch to 9, ", "train", "--resume", dir, "--clocks", "1000000")
	must(t, os.WriteFile(filepath.Join(dir, "run.json"), []byte(run), 0o666))
	newest, err := filepath.Glob(filepath.Join(dir, "snapshots", "s00001-*"))
	must(t, err)
	must(t, os.WriteFile(newest[1], []byte("no snapshot"), 0o666))
	if again, _ := resumesAt(t, dir); again != from {
		t.Errorf("with a damaged snapshot it resumes from clock %d, without from %d", again, from)
	}
	must(t, os.Remove(newest[0]))
	refused("shard 1: .* restore the newer snapshots in ")
	must(t, os.Rename(settings.LogFolder(dir), dir+"log"))
	refused("there is no log in ")
}

// TestStatelessElsewhere: a run with an external log resumes from the streams that it left there. They stay until they
// are removed. After that the run cannot resume.
func TestStatelessElsewhere(t *testing.T) {
	t.Parallel()
	s, err := logserver.Serve(t.TempDir(), logserver.ServeOptions{})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	dir, to := newFolder(t), newFolder(t)
	args := append(endless(dir), "--recovery", "stateless", "--log", s.URL()+"?mb=200")
	p := start(t, args...)
	p.Says("fault: slow")
	_, _, errs := p.Stop()
	says := regexp.MustCompile(`interrupted at clock \d+; resuming continues from the updates in its log: ` +
		`perdure train --resume \S+\n`)
	if !says.MatchString(errs) {
		t.Errorf("unexpected error output: %s", errs)
	}
	from, _ := resumesAt(t, dir)
	p = start(t, "train", "--resume", dir, "--clocks", fmt.Sprint(from+50), "--out", to)
	job := stateless(t, dir).Job
	p.Says("the updates of the earlier run stay in its log, and use space there, until you remove them: " +
		"nats stream rm perdure-" + job.ID + "-N, for N from 0 to 5\n")
	sum := p.succeeds(to)
	sameModel(t, sum, one(t, "--clocks", fmt.Sprint(from+50)), to)
	removeStreams(t, s.URL(), job.ID, 6)
	wantRefused(t, exitError, "is not in the log at .*: it was removed", "train", "--resume", dir, "--clocks",
		"1000000")
	if strings.Contains(logs(to), "panic") {
		t.Error(logs(to))
	}
	in := store.NewDir(disk.OS(), settings.SnapshotFolder(to))
	if all, err := in.List("s"); err != nil || len(all) < 6 {
		t.Errorf("too few snapshots: %v (%v)", all, err)
	}
}

// TestStatelessStore: snapshots are in a bucket and nowhere else. The run continues while the bucket rejects writes.
// Restarted servers and the next run start from the bucket.
func TestStatelessStore(t *testing.T) {
	t.Parallel()
	b, dir := newBucket(t), newFolder(t)
	b.Saved = func() { b.Fails.Store(40) }
	p := stores(t, small("--recovery", "stateless", "--log", "file:?snapshot-mb=1", "--clocks", "300", "--store", b.URL,
		"--out", dir, "--fault", "kill:server:0@clock:250")...)
	sameModel(t, p.succeeds(dir), one(t, "--clocks", "300"), dir)
	if b.Fails.Load() >= 0 {
		t.Errorf("%d requests have not failed yet", b.Fails.Load())
	}
	if files, err := os.ReadDir(filepath.Join(dir, "snapshots")); err == nil {
		t.Errorf("the run's snapshot directory contains %v", files)
	}
	to := newFolder(t)
	again := []string{"train", "--quiet", "--resume", dir, "--clocks", "330", "--out", to, "--store"}
	stores(t, append(again, b.URL)...).refused(exitUsage, "taken: it belongs to job [0-9a-f]+ ")
	sameModel(t, stores(t, append(again, b.at("b"))...).succeeds(to), one(t, "--clocks", "330"), to)
}
