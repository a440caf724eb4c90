package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/run/settings"
)

// TestLogKeys: the log of a run with keys requires them. Through the deaths of a server, a worker, the log and the
// coordinator, the run ends with the model of an undisturbed one.
func TestLogKeys(t *testing.T) {
	t.Parallel()
	ring, dir := newKeys(t), newFolder(t)
	job := start(t, small("--keys", ring, "--recovery", "stateless", "--fault", "kill:server:1@clock:15", "--fault",
		"kill:log@clock:25", "--fault", "kill:worker:0@clock:30", "--fault", "kill:coordinator@clock:35", "--out",
		dir)...)
	sameModel(t, job.succeeds(dir), one(t), dir)
	checkRaces(t, dir)
	s, err := settings.Read(filepath.Join(dir, "run.json"))
	must(t, err)
	if !strings.HasPrefix(s.Job.Log, "perdure://127.0.0.1:") {
		t.Errorf("unexpected address of the log: %s", s.Job.Log)
	}
	wantOut(t, 0, []string{"log", "verify", dir}, "intact") // the log is no longer served
}

// TestLogKeysLive: while a run with keys trains, its log discloses nothing without keys, and each role can do what its
// keys permit.
func TestLogKeysLive(t *testing.T) {
	t.Parallel()
	ring, dir := newKeys(t), newFolder(t)
	job := start(t, append(endless(dir), "--recovery", "stateless", "--keys", ring)...)
	awaitStatus(t, dir, `update log: .* in 6 streams`)
	url, err := updatelog.ReadURL(settings.LogFolder(dir))
	must(t, err)
	_, at, _ := strings.Cut(url, "@")
	as := func(role string) []string { return []string{"perdure://" + at, "--keys", filepath.Join(ring, role)} }
	for _, c := range []struct {
		pattern string
		args    []string
	}{
		{"this log has no streams for other", []string{"verify", dir, "--job", "other"}},
		{"this log has no streams for other", append([]string{"verify", "--job", "other"}, as("operator")...)},
		{"requires the job's keys", []string{"verify", "perdure://" + at}},
		{"does not accept the keys of viewer/viewer", append([]string{"verify"}, as("viewer")...)},
		{"does not allow the holder of the keys of worker/worker to do this", append([]string{"verify"},
			as("worker")...)},
		{"another job's keys", []string{"verify", "perdure://" + at, "--keys", newKeys(t)}},
		{"does not answer", []string{"verify", "nats://" + at}},
	} {
		wantRefused(t, exitError, c.pattern, append([]string{"log"}, c.args...)...)
	}
	job.Stop()
	checkRaces(t, dir)
}

// TestLogServed: perdure log serves with a job's keys, and a run refers to it by address only. The coordinator's keys
// create and remove its streams. Runs without keys, or with options for a cluster, are rejected with a one-line error.
func TestLogServed(t *testing.T) {
	t.Parallel()
	ring, dir := newKeys(t), newFolder(t)
	log := start(t, "log", "--dir", filepath.Join(t.TempDir(), "log"), "--keys", filepath.Join(ring, "server"))
	url := log.Says(`the log listens at (perdure://\S+) and requires keys`)[1]
	s, _ := trained(t, append(small("--keys", ring, "--recovery", "stateless", "--log", url+"?mb=300", "--fault",
		"kill:server:1@clock:15", "--out", dir), "--quiet")...)
	sameModel(t, s, one(t), dir)
	look := []string{"log", "verify", url, "--keys", filepath.Join(ring, "operator")}
	wantRefused(t, exitError, "this log has no streams for any job", look...)
	wantRefused(t, exitError, "requires the job's keys",
		small("--recovery", "stateless", "--log", url, "--out", newFolder(t))...)
	wantRefused(t, exitUsage, "ca applies only to a NATS cluster; perdure://HOST:PORT uses the job's keys",
		small("--keys", ring, "--recovery", "stateless", "--log", url+"?ca=x", "--out", newFolder(t))...)
	wantRefused(t, exitUsage, "the keys in .* belong to worker/worker, but a server needs its own",
		"log", "--dir", filepath.Join(t.TempDir(), "log"), "--keys", filepath.Join(ring, "worker"))
}

// TestLogExposed: a log on a public address does not start without keys unless --insecure is given.
func TestLogExposed(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "log")
	wantRefused(t, exitUsage, "other machines can reach a log at 0.0.0.0:0, and nothing is encrypted: create keys",
		"log", "--dir", dir, "--listen", "0.0.0.0:0")
	if _, err := os.Stat(dir); err == nil {
		t.Error("a rejected log leaves a directory")
	}
	start(t, "log", "--dir", dir, "--listen", "0.0.0.0:0", "--insecure").Says("INSECURE: .* can reach the log")
	start(t, "log", "--dir", filepath.Join(t.TempDir(), "log"), "--listen", "localhost:0").Says("the log listens")
}
