//go:build unix

package main

import (
	"path/filepath"
	"syscall"
	"testing"
)

// TestLogHosts: a job with keys on several hosts stores its updates in a separate log that requires the keys. The log
// and a server are killed. The job ends with the model of a job on one machine, and its streams are removed.
func TestLogHosts(t *testing.T) {
	t.Parallel()
	ring, kept := newKeys(t), filepath.Join(t.TempDir(), "log")
	serve := func() (log *process, url string) {
		log = start(t, "log", "--dir", kept, "--keys", ring)
		return log, log.Says(`the log listens at (perdure://\S+) and requires keys`)[1]
	}
	log, url := serve()
	h := newHosted(t, "127.0.0.1", map[string]string{
		"recovery": "stateless", "log": url + "?mb=300", "store": "file://" + filepath.ToSlash(t.TempDir()),
		"compute-ms": "15",
	})
	h.lead("--keys", ring)
	a := h.host(newFolder(t), "--servers", "2", "--workers", "3", "--keys", ring)
	h.clock(10)
	log.Kill()
	_, again := serve()
	if again != url {
		t.Errorf("the log moved from %s to %s", url, again)
	}
	h.clock(25)
	must(t, syscall.Kill(h.pid("server:0"), syscall.SIGKILL))
	s := h.done()
	if want := one(t); *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
		t.Errorf("model %s, %d updates lost; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost, want, h.all())
	}
	h.ends("a", a)
	wantRefused(t, exitError, "this log has no streams for any job", "log", "verify", url, "--keys", ring)
}
