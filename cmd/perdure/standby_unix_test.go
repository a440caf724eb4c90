//go:build unix

package main

import (
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/registry/registrytest"
)

// TestStandby: two jobs share one etcd, each under its own prefix. When the first job's leading coordinator is killed,
// its standby becomes the leader, the hosts follow, and the model is that of an undisturbed run. The second job has the
// same model, and its coordinator keeps its lease. A coordinator of another job is rejected at a prefix in use. Hosts
// of the first job read its coordinator's address from a file.
func TestStandby(t *testing.T) {
	t.Parallel()
	const clocks = "300"
	etcd, keys := registrytest.NewEtcd(t, nil), newKeys(t)
	in := func(prefix string, more ...string) []string {
		return append([]string{"--registry", "etcd://" + etcd.Addr + "/jobs/" + prefix, "--keys", keys}, more...)
	}
	job := func() *hosted {
		return newHosted(t, "127.0.0.1", map[string]string{
			"clocks": clocks, "compute-ms": "15", "store": "file://" + t.TempDir(),
		})
	}
	hosts := []string{"--keys", keys, "--servers", "2", "--workers", "3"}

	first, second := job(), job()
	move := first.moves()
	first.lead(in("first")...)
	second.lead(in("second")...)
	one, led := first.dir, first.addr
	move()
	first.dir = newFolder(t)
	watched := reserved(t)
	standby := start(t, first.args(in("first", "--metrics", watched)...)...)
	standby.Says("the coordinator is on standby")
	isWatched(t, first.dir, watched, "it is on standby: ", 0)
	two := first.dir
	first.dir = one
	coordinators := filepath.Join(t.TempDir(), "coordinators")
	leads := func(addr string) { must(t, os.WriteFile(coordinators, []byte(addr+"\n"), 0o666)) }
	leads(led)
	first.join = "@" + coordinators
	firstHost := first.host(newFolder(t), hosts...)
	secondHost := second.host(newFolder(t), hosts...)
	first.clock(10)

	first.leader.Kill()
	etcd.ExpireBelow("jobs/first/")
	standby.Says("the coordinator of job ")
	leads(first.addr)
	isWatched(t, two, watched, "it leads job ", 1)
	first.leader, first.dir = standby, two
	want := undisturbedAt(t, clocks)
	for _, h := range []*hosted{first, second} {
		if s := h.done(); *s.ModelSHA256 != want || *s.UpdatesLost != 0 {
			t.Errorf("model %s, %d updates lost; want %s\n%s", *s.ModelSHA256, *s.UpdatesLost, want, h.all())
		}
	}
	first.ends("", firstHost)
	second.ends("", secondHost)
	if n := strings.Count(second.all(), "the coordinator of job "); n != 1 {
		t.Errorf("the second job was led %d times: %s", n, second.all())
	}

	first.dir = newFolder(t)
	wantOut(t, 0, first.args(in("first")...), "the job is done")
	other := job()
	wantRefused(t, exitUsage, `/jobs/first contains job [0-9a-f]{16}, but .*job.yaml requests another one; .*`+
		`prefix`, other.args(in("first")...)...)
	wantRefused(t, exitUsage, `can be shared by several coordinators, which need the same secrets`,
		other.args(in("third")[:2]...)...)
}

// isWatched waits until a coordinator's readiness endpoint shows whether it leads. It is healthy in both cases.
func isWatched(t *testing.T, dir, addr, words string, leads float64) {
	t.Helper()
	awaitReady(t, dir, addr, leads > 0)
	if code, body := look(t, addr, "/healthz", patience); code != http.StatusOK {
		t.Errorf("the coordinator is not healthy: %d %s", code, body)
	}
	want := http.StatusServiceUnavailable
	if leads > 0 {
		want = http.StatusOK
	}
	if code, body := look(t, addr, "/readyz", patience); code != want || !strings.HasPrefix(body, words) {
		t.Errorf("readiness is %d %s", code, body)
	}
	got := values(t, addr)
	if is, shown := got["perdure_coordinator_leads"]; !shown || is != leads || got["perdure_ready"] != leads {
		t.Errorf("the coordinator's metrics are %v", got)
	}
}
