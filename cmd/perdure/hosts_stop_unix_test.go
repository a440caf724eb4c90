//go:build unix

package main

import (
	"encoding/json"
	"strings"
	"syscall"
	"testing"
	"time"

	perdurelib "github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/runs"
)

// TestHostsStop: while the coordinator is down, after a signal or a kill, the run's directory says that the job may
// continue on its hosts. The coordinator restarts and the job is stopped; the directory then reports that, with the
// job's clock. All hosts end with the job, including the one with a standby worker, and say so.
func TestHostsStop(t *testing.T) {
	t.Parallel()
	h := newHosted(t, "127.0.0.1", map[string]string{"clocks": "100000", "compute-ms": "15", "recovery": "chain:2"})
	h.lead()
	hosts := []*process{h.host(newFolder(t), "--workers", "2"), h.host(newFolder(t), "--workers", "1")}
	shows := func(want runs.State, reached perdurelib.Clock) {
		t.Helper()
		for _, command := range [][]string{{"status", "--run", h.dir, "--json"}, {"runs", "show", h.dir, "--json"}} {
			var got runs.Line
			code, out, errs := invoke(t, command...)
			must(t, json.Unmarshal([]byte(out), &got))
			if code != 0 || got.State != want || got.Clock < reached {
				t.Errorf("%v ended with code %d: %s%s; want state %s at clock %d or later", command, code, out, errs,
					want, reached)
			}
		}
	}
	h.clock(10)
	h.leader.Signal(syscall.SIGTERM)
	h.leader.Wait()
	shows(runs.Detached, 10)
	h.lead()
	h.clock(50)
	must(t, h.leader.Process.Kill())
	h.leader.Wait()
	shows(runs.Detached, 10) // it had no event since
	h.lead()
	h.clock(100)
	wantOut(t, 0, []string{"stop", "--run", h.dir})
	ended := time.Now()
	h.leader.Wait()
	shows(runs.Stopped, 100)
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
