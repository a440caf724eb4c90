//go:build unix

package main

import (
	"context"
	"flag"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/settings"
)

var s3Server = flag.String("s3.server", "",
	"the versitygw program, which is the S3 server of TestS3; without it the test is skipped")

// s3Process is a real S3 server that tests kill and suspend.
type s3Process struct {
	testing.TB
	addr, dir string
	cmd       *exec.Cmd
}

func startS3(t testing.TB) *s3Process {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &s3Process{TB: t, addr: l.Addr().String(), dir: t.TempDir()}
	must(t, l.Close())
	must(t, os.Mkdir(filepath.Join(s.dir, "bucket"), 0o777))
	s.begin()
	t.Cleanup(s.kill)
	return s
}

func (s *s3Process) begin() {
	s.Helper()
	server, err := filepath.Abs(*s3Server)
	must(s, err)
	s.cmd = exec.Command(server, "--port", s.addr, "--access", "test", "--secret", storeSecret, "--quiet", "posix",
		s.dir)
	must(s, s.cmd.Start())
	await(s, func() bool {
		r, err := http.Get("http://" + s.addr + "/")
		return err == nil && r.Body.Close() == nil
	}, func() string { return "the server does not answer" })
}

func (s *s3Process) kill() {
	_ = s.cmd.Process.Kill()
	_ = s.cmd.Wait() // killed
}

// after calls f after d.
func after(t testing.TB, d time.Duration, f func()) {
	t.Helper()
	<-time.After(d)
	f()
}

// TestS3 runs jobs that keep their checkpoints, snapshots and states on a real S3 server. The S3 server is killed and
// suspended during the run, and a server of the job is killed as well. The jobs end with the model of an undisturbed
// job, and the stored data is intact. make check-s3 runs this test.
func TestS3(t *testing.T) {
	if *s3Server == "" {
		t.Skip("needs an S3 server; set -s3.server")
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "test") // for jobs that are children of this process
	t.Setenv("AWS_SECRET_ACCESS_KEY", storeSecret)
	for _, c := range []struct {
		recovery     string
		away, frozen time.Duration // jobs tolerate 15 s without an answer
	}{
		{"resend:10", 3 * time.Second, 20 * time.Second},
		{"checkpoint:10", 60 * time.Second, 20 * time.Second},
		{"checkpoint:10,async", 3 * time.Second, 60 * time.Second},
		{"scar:4,1/4", 3 * time.Second, 20 * time.Second},
		{"stateless", 60 * time.Second, 20 * time.Second},
	} {
		t.Run(c.recovery, func(t *testing.T) {
			t.Parallel()
			s3Outages(t, c.recovery, c.away, c.frozen)
		})
	}
	t.Run("states", func(t *testing.T) {
		t.Parallel()
		s3States(t)
	})
}

// s3Outages runs a job whose S3 server is down for a while and suspended for a while.
func s3Outages(t *testing.T, recovery string, away, frozen time.Duration) {
	s3, dir := startS3(t), newFolder(t)
	url := "s3://bucket/a?endpoint=http://" + s3.addr
	logged, scar := recovery == "stateless", strings.HasPrefix(recovery, "scar")
	args := small("--recovery", recovery, "--store", url, "--out", dir, "--compute-ms", "100", "--fault",
		"slow*1.01:worker:0@clock:30")
	if logged {
		args = append(args, "--log", "file:?snapshot-mb=1")
	}
	p := stores(t, append(args[:1:1], args[2:]...)...)
	p.Says("fault: slow")
	if kept := s3.objects("a", ".snapshot"); logged != (kept > 0) {
		t.Errorf("%d snapshots are in the store", kept)
	}
	s3.kill()
	wantOut(t, 0, []string{"fault", "kill:server:0@0s", "--run", dir})
	after(t, away, s3.begin)
	after(t, time.Second, func() { must(t, s3.cmd.Process.Signal(syscall.SIGSTOP)) })
	after(t, frozen, func() { must(t, s3.cmd.Process.Signal(syscall.SIGCONT)) })
	s := p.succeeds(dir)
	if !scar {
		sameModel(t, s, one(t), dir)
	}
	if code, out, errs := stores(t, "checkpoint", "verify", url).Wait(); code != 0 { // checkpoints or snapshots
		t.Errorf("verify: exit code %d: %s%s", code, out, errs)
	}
	to := newFolder(t)
	s = stores(t, "train", "--quiet", "--resume", dir, "--clocks", "80", "--out", to, "--store",
		"s3://bucket/b?endpoint=http://"+s3.addr).succeeds(to)
	if !scar {
		sameModel(t, s, one(t, "--clocks", "80"), to)
	}
}

// objects counts the objects below a key of the bucket whose names have the suffix.
func (s *s3Process) objects(below, suffix string) (n int) {
	s.Helper()
	files, err := os.ReadDir(filepath.Join(s.dir, "bucket", below))
	must(s, err)
	for _, f := range files {
		if strings.HasSuffix(f.Name(), suffix) {
			n++
		}
	}
	return n
}

// s3States stores states of 3 and of 40 MiB on a server that is down for a while. During the outage a worker and a
// server of the job die. Each state is loaded exactly as it was saved, and states that are no longer needed are
// deleted.
func s3States(t *testing.T) {
	s3 := startS3(t)
	how, err := perdure.ParseRecovery("resend:5")
	must(t, err)
	j, ended := startPrograms(t, settings.Run{
		Job: perdure.JobSpec{
			Seed: 1, Slots: stateWorkers, Servers: stateServers, Shards: 4, Clocks: stateClocks, AwaitExport: true,
			Consistency: perdure.Consistency{Kind: perdure.BSP}, Recovery: how,
		},
		Checkpoints: settings.Checkpoints{Keep: 1, Store: "s3://bucket/s?endpoint=http://" + s3.addr},
	}, "states", paceEnv+"=50")
	await(t, func() bool { return j.Clock() >= stateClocks/2 }, func() string { return "the job makes no progress" })
	s3.kill()
	for _, text := range []string{"kill:worker:0@0s", "kill:server:0@0s"} {
		f, err := supervisor.ParseFault(text)
		must(t, err)
		j.Job().AddFault(f)
	}
	after(t, 3*time.Second, s3.begin)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	select {
	case <-j.Complete():
	case err := <-ended:
		t.Fatalf("the job ended early: %v", err)
	case <-ctx.Done():
		t.Fatal("the job does not end")
	}
	fewStates(t, filepath.Join(s3.dir, "bucket", "s"))
	j.Job().MarkDone()
	j.Job().End(localrun.ErrExported)
	<-ended
}
