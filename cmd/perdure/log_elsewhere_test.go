package main

import (
	"path/filepath"
	"testing"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/logserver"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestLogElsewhere: a run leaves no streams in an external log if it is rejected or its model is safe. Otherwise it
// prints which streams it leaves and how to remove them.
func TestLogElsewhere(t *testing.T) {
	t.Parallel()
	s, err := logserver.Serve(t.TempDir(), logserver.ServeOptions{MaxBytes: 300 << 20})
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
		wantOut(t, 1, []string{"log", "verify", s.URL()}, "this log has no streams for any job")
	}
	wantRefused(t, exitError, "does not have enough space for stream perdure-.*-3, which may take 100 MiB", train("20",
		"400")...)
	none()
	wantOut(t, 0, train("20", "200"), "20 clocks in ")
	none()

	out += "-2"
	p := start(t, train("1000000", "200")...)
	p.Says(`clock +[0-9]+ of 1000000`)
	settings, err := settings.Read(filepath.Join(out, "run.json"))
	must(t, err)
	id := settings.Job.ID
	wantOut(t, 0, []string{"stop", "--run", out})
	p.Wait()
	wantOut(t, 0, []string{"log", "verify", s.URL()}, "job "+id+" shard 3: ")
	removeStreams(t, s.URL(), id, 4)
	none()

	out += "-3"
	wantOut(t, 1, append(train("1000000", "200"), "--no-replace", "--fault", "kill:server:0@clock:2"),
		"the updates of this run stay in its log, and use space there, until you remove them: nats stream rm perdure-",
		"-N, for N from 0 to 3\n", "perdure: no server is left (of 1); ")
	wantOut(t, 0, []string{"log", "verify", s.URL()}, " shard 3: ")
}

// removeStreams removes a job's streams from a log, like the NATS CLI.
func removeStreams(t *testing.T, url, job string, shards int) {
	t.Helper()
	nc, err := nats.Connect(url)
	must(t, err)
	defer nc.Close()
	js, err := jetstream.New(nc)
	must(t, err)
	for shard := range shards {
		must(t, js.DeleteStream(t.Context(), updatelog.StreamName(job, shard)))
	}
}
