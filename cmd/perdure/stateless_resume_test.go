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

// killedStateless is the folder of a run under stateless whose supervisor was killed, and with it all processes.
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
	}, func() string { return "there are not two snapshots of each shard\n" + logs(dir) })
	p.Kill()
	await(t, func() bool { // its processes may live for a moment
		lock, err := disk.Share(filepath.Join(settings.LogFolder(dir), "lock"))
		if err == nil {
			must(t, lock.Close())
		}
		return err == nil
	}, func() string { return "its log does not end" })
	return dir
}

func stateless(t *testing.T, dir string) *settings.Run {
	t.Helper()
	s, err := settings.Read(filepath.Join(dir, "run.json"))
	must(t, err)
	return &s
}

// resumesAt is the clock from which a run goes on, and how far any of its slots has come.
func resumesAt(t *testing.T, dir string) (from, furthest int64) {
	t.Helper()
	a := clocks(1_000_000)
	a.Store, a.Given["store"] = "file:///nowhere", true
	s, err := a.Resume(dir)
	must(t, err)
	return int64(s.Checkpoints.Ended.Cut), int64(s.Checkpoints.Ended.Furthest)
}

// TestStatelessResumed: when all processes are gone the next run goes on from what the update log has, on another
// number of servers, with all who take part, and again from that. Nothing is lost, and nothing counts twice; under
// bsp the model is that of a run that was never ended. Snapshots are where --store says.
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
			if from < 20 {
				t.Errorf("it goes on from clock %d", from)
			}
			s, to := trained(t, again(dir, first, append(at("2"), "--servers", "3", "--fault",
				fmt.Sprintf("kill:server:2@clock:%d", from+10))...)...)
			s, _ = trained(t, again(to, last, at("3")...)...)
			if want := int64(s.Shards) * (4*last - 20); *s.UpdatesApplied != want || *s.UpdatesLost != 0 ||
				s.Servers != 3 || int64(s.Clocks) != last {
				t.Errorf("%d clocks, %d servers, %d updates applied and %d lost of %d", s.Clocks, s.Servers,
					*s.UpdatesApplied, *s.UpdatesLost, want)
			}
			if c.consistency == "bsp" {
				want := one(t, "--clocks", fmt.Sprint(last), "--scale", "4@clock:20", "--recovery", "none")
				sameModel(t, s, want, dir)
			}
			if files, err := filepath.Glob(filepath.Join(to, "snapshots", "*")); (len(files) > 0) != (c.store == "") {
				t.Errorf("the run's own folder of snapshots has %v, %v", files, err)
			}
		})
	}
}

// TestStatelessNotResumed: what keeps a run from going on is said in one line, and nothing stays; a damaged snapshot
// is passed over for the one before.
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
			t.Error("a run that is refused leaves a folder")
		}
	}
	wantRefused(t, exitUsage, "only stateless can resume from a log; leave it out", "train", "--resume", dir,
		"--clocks",
		"1000000", "--recovery", "resend:5")
	wantRefused(t, exitUsage, "--shards cannot be changed with --resume", "train", "--resume", dir, "--shards", "2")
	wantRefused(t, exitUsage, fmt.Sprintf("is already at clock %d", from), "train", "--resume", dir, "--clocks",
		fmt.Sprint(from))
	run := fileOf(t, dir, "run.json")
	other := strings.Replace(run, `"Batch": 8`, `"Batch": 9`, 1)
	must(t, os.WriteFile(filepath.Join(dir, "run.json"), []byte(other), 0o666))
	wantRefused(t, exitUsage, "run.json has params.Batch 9, ", "train", "--resume", dir, "--clocks", "1000000")
	must(t, os.WriteFile(filepath.Join(dir, "run.json"), []byte(run), 0o666))
	newest, err := filepath.Glob(filepath.Join(dir, "snapshots", "s00001-*"))
	must(t, err)
	must(t, os.WriteFile(newest[1], []byte("no snapshot"), 0o666))
	if again, _ := resumesAt(t, dir); again != from {
		t.Errorf("with a damaged snapshot it goes on from clock %d, and else from %d", again, from)
	}
	must(t, os.Remove(newest[0]))
	refused("shard 1: .* restore the newer snapshots in ")
	must(t, os.Rename(settings.LogFolder(dir), dir+"log"))
	refused("there is no log in ")
}

// TestStatelessElsewhere: a run whose log is elsewhere goes on from the streams that it has left there, which stay
// until they are removed; then it cannot.
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
		t.Errorf("it says %s", errs)
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
	in := store.Folder(disk.OS(), settings.SnapshotFolder(to))
	if all, err := in.List("s"); err != nil || len(all) < 6 {
		t.Errorf("its snapshots are %v, %v", all, err)
	}
}

// TestStatelessStore: snapshots are in a bucket and nowhere else, whole runs go on while it takes nothing, servers that
// die begin from there, and so does the next run.
func TestStatelessStore(t *testing.T) {
	t.Parallel()
	b, dir := newBucket(t), newFolder(t)
	args := small("--recovery", "stateless", "--log", "file:?snapshot-mb=1", "--clocks", "300",
		"--store", b.URL, "--out", dir,
		"--fault", "slow*1.01:worker:0@clock:60", "--fault", "kill:server:0@clock:250")
	p := stores(t, append(args[:1:1], args[2:]...)...)
	p.Says("fault: slow")
	b.Fails.Store(40)
	sameModel(t, p.succeeds(dir), one(t, "--clocks", "300"), dir)
	if b.Fails.Load() >= 0 {
		t.Errorf("%d requests would still fail", b.Fails.Load())
	}
	if files, err := os.ReadDir(filepath.Join(dir, "snapshots")); err == nil {
		t.Errorf("the run's own folder of snapshots has %v", files)
	}
	to := newFolder(t)
	again := []string{"train", "--quiet", "--resume", dir, "--clocks", "330", "--out", to, "--store"}
	stores(t, append(again, b.URL)...).refused(exitUsage, "taken: it belongs to job [0-9a-f]+ ")
	sameModel(t, stores(t, append(again, b.at("b"))...).succeeds(to), one(t, "--clocks", "330"), to)
}
