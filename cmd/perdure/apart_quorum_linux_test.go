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

// TestNoQuorum: two of three members of etcd are dead or frozen for 20 s. Training goes on meanwhile, and the
// coordinator that leads it says soon how it is and that etcd is away. It goes on leading where the members were dead:
// the quorum that comes back has lost no time that a lease has. Where they were frozen either of the two leads.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	if *apartEtcd == "" {
		t.Skip("without -apart.etcd there is none; make check-hosts has it")
	}
	signal := func(of syscall.Signal) func(a *apart, host int) {
		return func(a *apart, host int) {
			must(a, syscall.Kill(-a.processes[fmt.Sprintf("etcd %d", host)].Process.Pid, of))
		}
	}
	for name, c := range map[string]struct {
		away, back func(a *apart, host int)
		leads      []int // hosts of whom one has led it to its end
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
	t.Logf("without a quorum status says, after %.2f s\n%s", answered.Seconds(), said)
	if !strings.Contains(said,
		"the registry has been unavailable since") || answered > 3*time.Second { // on a machine that is busy
		t.Errorf("status does not soon report that the registry is unavailable")
	}
	for _, host := range []int{2, 3} {
		back(a, host)
	}
	again := time.Now()
	await(t, func() bool { // one that leads no longer may not have heard of it yet
		to = max(a.clockOf(0), a.clockOf(1))
		return to >= from+200 || a.over()
	}, a.all)
	took := time.Since(again)
	t.Logf("clock %d when the quorum was lost, and %d %.1f s after it was back", from, to, took.Seconds())
	if took > 8*time.Second { // a worker takes 2 s for as many clocks at least, where nothing else is done
		t.Errorf("training has stood while there was no quorum\n%s", a.all())
	}
	await(t, a.over, a.all)
	for _, host := range leads {
		if _, err := os.Stat(filepath.Join(a.dir(host), "summary.json")); err != nil {
			continue
		}
		t.Logf("the coordinator of host %d has led it to its end", host)
		got := *summary(t, a.dir(host)).ModelSHA256
		want := one(t, "--clocks", strconv.Itoa(clocks), "--workers", "4", "--servers", "4", "--shards", "8")
		if got != want {
			t.Errorf("model %s; want %s\n%s", got, want, a.all())
		}
		return
	}
	t.Fatalf("another coordinator has led it to its end\n%s", a.all())
}
