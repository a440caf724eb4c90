//go:build unix

package main

import (
	"flag"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

var s3Server = flag.String("s3.server", "", "a program to be the S3 server of TestS3: versitygw; none: no test")

// s3Process is a real S3 server, which can be killed and frozen.
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

// after calls f in a while.
func after(t testing.TB, d time.Duration, f func()) {
	t.Helper()
	<-time.After(d)
	f()
}

// TestS3 has jobs keep their checkpoints on a real S3 server, which is killed and frozen mid-run, and a
// server of the job with it: they end with the undisturbed model, and what is kept is whole. It is what
// make check-s3 runs.
func TestS3(t *testing.T) {
	if *s3Server == "" {
		t.Skip("without -s3.server there is none")
	}
	for _, recovery := range []string{"resend:10", "checkpoint:10", "checkpoint:10,async", "scar:4,1/4"} {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			s3, dir := startS3(t), newFolder(t)
			url := "s3://bucket/a?endpoint=http://" + s3.addr
			args := small("--recovery", recovery, "--store", url, "--out", dir, "--compute-ms", "100", "--fault",
				"slow*1.01:worker:0@clock:12")
			p := stores(t, append(args[:1:1], args[2:]...)...)
			p.Says("fault: slow")
			s3.kill()
			wantOut(t, 0, []string{"fault", "kill:server:0@0s", "--run", dir})
			after(t, 3*time.Second, s3.begin)
			after(t, time.Second, func() { must(t, s3.cmd.Process.Signal(syscall.SIGSTOP)) })
			after(t, 20*time.Second, func() { must(t, s3.cmd.Process.Signal(syscall.SIGCONT)) })
			s := p.succeeds(dir)
			if recovery != "scar:4,1/4" {
				sameModel(t, s, one(t), dir)
			}
			v := stores(t, "checkpoint", "verify", url)
			if code, out, errs := v.Wait(); code != 0 {
				t.Errorf("verify: exit code %d: %s%s", code, out, errs)
			}
			to := newFolder(t)
			s = stores(t, "train", "--quiet", "--resume", dir, "--clocks", "80", "--out", to, "--store",
				"s3://bucket/b?endpoint=http://"+s3.addr).succeeds(to)
			if recovery != "scar:4,1/4" {
				sameModel(t, s, one(t, "--clocks", "80"), to)
			}
		})
	}
}
