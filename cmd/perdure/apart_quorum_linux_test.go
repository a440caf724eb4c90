package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// TestNoQuorum: two of three members of etcd are away for 20 s. Training goes on meanwhile, the coordinator that leads
// it says soon how it is and that etcd is away, and then goes on leading.
func TestNoQuorum(t *testing.T) {
	t.Parallel()
	if *apartEtcd == "" {
		t.Skip("without -apart.etcd there is none; make check-hosts has it")
	}
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
		kill(a.processes[fmt.Sprintf("etcd %d", host)])
	}
	select {
	case <-time.After(20 * time.Second):
	case <-t.Context().Done():
	}
	asked := time.Now()
	said := a.status(0)
	answered := time.Since(asked)
	t.Logf("without a quorum status says, after %.2f s\n%s", answered.Seconds(), said)
	if !strings.Contains(said, "the registry is away since") || answered > 3*time.Second { // on a machine that is busy
		t.Errorf("it does not say soon that the registry is away")
	}
	for _, host := range []int{2, 3} {
		a.member(host)
	}
	back := time.Now()
	await(t, func() bool { to = a.clock(); return to >= from+1000 || a.over() }, a.all)
	took := time.Since(back)
	t.Logf("clock %d when the quorum was lost, and %d %.1f s after it was back", from, to, took.Seconds())
	if took > 8*time.Second { // of a worker 1,000 clocks take 10 s at least
		t.Errorf("training has stood while there was no quorum")
	}
	await(t, a.over, a.all)
	if _, err := os.Stat(filepath.Join(a.dir(0), "summary.json")); err != nil {
		t.Fatalf("another coordinator has led it to its end: %v\n%s", err, a.all())
	}
	got := *summary(t, a.dir(0)).ModelSHA256
	want := one(t, "--clocks", strconv.Itoa(clocks), "--workers", "4", "--servers", "4", "--shards", "8")
	if got != want {
		t.Errorf("model %s; want %s\n%s", got, want, a.all())
	}
}
