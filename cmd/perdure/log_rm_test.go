package main

import (
	"path/filepath"
	"testing"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestLogRm removes the streams of jobs, and refuses in one line what it does not remove.
func TestLogRm(t *testing.T) {
	t.Parallel()
	run := t.TempDir()
	dir := filepath.Join(run, "log")
	s, err := updatelog.Serve(dir, updatelog.ServeOptions{})
	must(t, err)
	make1 := func(job string, shards int) updatelog.Log {
		l, err := updatelog.Dial(t.Context(), s.URL(),
			updatelog.DialOptions{Options: updatelog.Options{Job: job, Shards: shards}, MaxBytes: 50 << 20})
		must(t, err)
		return l
	}
	l := make1("first", 2)
	done := make(chan error, 1)
	must(t, l.Append(t.Context(), 1, [][]byte{[]byte("an update")},
		func(_ updatelog.Position, err error) { done <- err }))
	must(t, <-done)
	must(t, l.Close())
	must(t, make1("second", 3).Close())

	rm := func(more ...string) []string { return append([]string{"log", "rm"}, more...) }
	wantOut(t, 2, rm(),
		"perdure: which log? name a run's folder, or a log's that is served, or write nats://HOST:PORT\n")
	wantOut(t, 2, rm(s.URL()+"?cert=a"), "belong together")
	wantOut(t, 2, rm(dir), "perdure: which job? write --job ID; there are first, second\n")
	wantOut(t, 1, rm(s.URL(), "--job", "third"),
		"perdure: there are no streams of third in this log; there are those of first, second\n")
	wantOut(t, 1, rm(dir, "--job", "first"),
		"perdure: job first seems to run, and cannot go on without its log: stream perdure-first-1 got a record ",
		" s ago; end it, and wait 10s, or write --force\n")
	wantOut(t, 1, rm(t.TempDir(), "--job", "first"), "no log in")
	wantOut(t, 0, []string{"log", "ls", dir}, "first", "second")

	wantOut(t, 0, rm(dir, "--job", "first", "--force"),
		"removed 2 of 2 streams of job first with 0.0 MB of updates; 100 MiB of the log, which it might have come "+
			"to take, are free for others; if it was not done, it cannot go on\n")
	wantOut(t, 1, []string{"log", "ls", dir, "--job", "first"}, "no streams of first")
	wantOut(t, 0, rm(s.URL(), "--job", "second"),
		"removed 3 of 3 streams of job second with 0.0 MB of updates; 150 MiB")
	wantOut(t, 1, rm(dir, "--job", "second"), "perdure: there are no streams of any job in this log\n")
	must(t, s.Close())
	wantOut(t, 1, rm(dir, "--job", "second"), "perdure: nobody serves the log in "+dir+"; start perdure log --dir "+dir+
		", and then remove the job's streams\n")
	wantOut(t, 1, rm(run), "perdure: nobody serves the log in "+dir+
		", which is of that run alone; delete that folder\n")
}

// TestLogElsewhere: a run leaves nothing in a log elsewhere if it is refused, or its model is
// safe; else it says what it leaves, and how to remove that, which waits for its end.
func TestLogElsewhere(t *testing.T) {
	t.Parallel()
	s, err := updatelog.Serve(t.TempDir(), updatelog.ServeOptions{MaxBytes: 300 << 20})
	must(t, err)
	defer func() { must(t, s.Close()) }()
	out := newFolder(t)
	train := func(clocks, mb string) []string {
		return []string{
			"train", "--recovery", "stateless", "--log", s.URL() + "?mb=" + mb, "--shards", "4",
			"--clocks", clocks, "--workers", "2", "--servers", "1", "--eval-every", "0", "--data", pictures, "--out",
			out,
		}
	}
	none := func() {
		t.Helper()
		wantOut(t, 1, []string{"log", "ls", s.URL()}, "there are no streams of any job in this log")
	}
	wantRefused(t, exitError, "has no room for stream perdure-.*-3, which may take 100 MiB", train("20", "400")...)
	none()
	wantOut(t, 0, train("20", "200"), "20 clocks in ")
	none()

	out += "-2"
	p := start(t, train("1000000", "200")...)
	p.Says(`clock +[0-9]+ of 1000000`)
	settings, err := settings.Read(filepath.Join(out, "run.json"))
	must(t, err)
	id := settings.Job.ID
	wantOut(t, 1, []string{"log", "rm", out}, "perdure: job "+id+
		" still runs, and cannot go on without its log; end it with perdure stop --run "+out+", or write --force\n")
	wantOut(t, 1, []string{"log", "rm", s.URL(), "--job", id},
		"perdure: job "+id+" seems to run, and cannot go on without its log: stream perdure-"+id)
	wantOut(t, 2, []string{"log", "rm", out, "--job", "other"}, out+" is the folder of job "+id+", not of other")
	wantOut(t, 0, []string{"stop", "--run", out})
	p.Wait()
	wantOut(t, 0, []string{"log", "ls", s.URL()}, id)
	wantOut(t, 0, []string{"log", "rm", out, "--force"}, "removed 4 of 4 streams of job "+id)
	none()

	out += "-3"
	wantOut(t, 1, append(train("1000000", "200"), "--no-replace", "--fault", "kill:server:0@clock:2"),
		"the updates of this run stay in its log, and take room there, until you remove them: perdure log rm "+out+"\n",
		"perdure: no server is left of 1; ")
	wantOut(t, 0, []string{"log", "rm", out, "--force"}, "removed 4 of 4 streams of job ")
	none()
}
