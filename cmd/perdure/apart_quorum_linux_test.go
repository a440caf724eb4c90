package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestNoQuorum: two of three members of etcd are dead or suspended for 20 s. Training continues meanwhile. The leading
// coordinator soon reports its state and that etcd is unavailable. If the members were dead, it remains the leader:
// lease time does not pass without a quorum. If they were suspended, either coordinator may lead.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	if *apartEtcd == "" {
		t.Skip("needs a registry in etcd: set -apart.etcd, or run make check-hosts")
	}
	signal := func(of syscall.Signal) func(a *apart, host int) {
		return func(a *apart, host int) {
			must(a, syscall.Kill(-a.processes[fmt.Sprintf("etcd %d", host)].Process.Pid, of))
		}
	}
	for name, c := range map[string]struct {
		away, back func(a *apart, host int)
		leads      []int // hosts, one of which must lead the job at its end
	}{
		"dead": {
			func(a *apart, host int) { kill(a.processes[fmt.Sprintf("etcd %d", host)]) },
			func(a *apart, host int) { a.member(host) },
			[]int{0},
		},
		"frozen": {signal(syscall.SIGSTOP), signal(syscall.SIGCONT), []int{0, 1}},
	} {
		t.Run(name, func(t *testing.T) { withoutQuorum(t, c.away, c.back, c.leads) })
	}
}

func withoutQuorum(t *testing.T, away, back func(a *apart, host int), leads []int) {
	const clocks = 3000
	a := newApart(t, "checkpoint:20", clocks, 1)
	a.lead(0)
	a.processes["coordinator 0"].Says("the coordinator of job ")
	a.lead(1)
	for host := 1; host < apartHosts; host++ {
		a.serve(host, "1", "1")
	}
	await(t, func() bool { return a.clockOf(0) >= 50 }, a.all)
	from, to := a.clockOf(0), -1
	for _, host := range []int{2, 3} {
		away(a, host)
	}
	select {
	case <-time.After(20 * time.Second):
	case <-t.Context().Done():
	}
	asked := time.Now()
	said := a.status(0)
	answered := time.Since(asked)
	t.Logf("without a quorum the status after %.2f s is\n%s", answered.Seconds(), said)
	if !strings.Contains(said,
		"the registry has been unavailable since") || answered > 3*time.Second { // on a busy machine
		t.Errorf("status does not soon report that the registry is unavailable")
	}
	for _, host := range []int{2, 3} {
		back(a, host)
	}
	again := time.Now()
	await(t, func() bool { // a former leader may not have noticed yet
		to = max(a.clockOf(0), a.clockOf(1))
		return to >= from+200 || a.over()
	}, a.all)
	took := time.Since(again)
	t.Logf("clock %d when the quorum was lost, clock %d %.1f s after it was restored", from, to, took.Seconds())
	if took > 8*time.Second { // a worker needs at least 2 s for these clocks
		t.Errorf("training paused while there was no quorum\n%s", a.all())
	}
	await(t, a.over, a.all)
	for _, host := range leads {
		if _, err := os.Stat(filepath.Join(a.dir(host), "summary.json")); err != nil {
			continue
		}
		t.Logf("the coordinator of host %d led the job at its end", host)
		got := *summary(t, a.dir(host)).ModelSHA256
		want := one(t, "--clocks", strconv.Itoa(clocks), "--workers", "4", "--servers", "4", "--shards", "8")
		if got != want {
			t.Errorf("model %s; want %s\n%s", got, want, a.all())
		}
		return
	}
	t.Fatalf("an unexpected coordinator led the job at its end\n%s", a.all())
}
