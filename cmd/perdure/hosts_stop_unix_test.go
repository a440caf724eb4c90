//go:build unix

package main

import (
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestHostsStop: after a signal to the coordinator, the run's directory reports that the job may continue elsewhere.
// The coordinator restarts and the job is stopped; the directory then reports that, with the job's clock.
// All hosts end with the job, including the one with a standby worker, and say so.
func TestHostsStop(t *testing.T) {
	t.Parallel()
	h := newHosted(t, "127.0.0.1", map[string]string{"clocks": "100000", "compute-ms": "15", "recovery": "chain:2"})
	h.lead()
	hosts := []*process{h.host(newFolder(t), "--workers", "2"), h.host(newFolder(t), "--workers", "1")}
	shows := func(want string) {
		t.Helper()
		for _, command := range [][]string{{"status", "--run", h.dir}, {"runs", "show", h.dir}} {
			if code, out, errs := invoke(t, command...); code != 0 || !regexp.MustCompile(want).MatchString(out) {
				t.Errorf("%v ended with code %d: %s%s; want %s", command, code, out, errs, want)
			}
		}
	}
	h.clock(10)
	h.leader.Signal(syscall.SIGTERM)
	h.leader.Wait()
	shows(`was left by its coordinator at clock \d\d+ of 100000; the job may continue elsewhere`)
	h.lead()
	h.clock(100)
	wantOut(t, 0, []string{"stop", "--run", h.dir})
	ended := time.Now()
	h.leader.Wait()
	shows(`was stopped at clock \d\d\d+ of 100000`)
	for i, p := range hosts {
		h.ends([]string{"one", "two"}[i], p)
		if out := p.stdout.String() + p.stderr.String(); !strings.Contains(out, `"the job is over"`) {
			t.Errorf("a host does not report the end of the job: %s", out)
		}
	}
	if took := time.Since(ended); took > 30*time.Second { // programs get a minute
		t.Errorf("the hosts ended %v after the job", took)
	}
}
