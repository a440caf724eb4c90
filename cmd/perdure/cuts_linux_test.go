package main

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// cut is a partition between two hosts, or between one host and all others. Host 0 has the coordinator. Hosts 1 and 2
// have a server each, host 3 has a worker, and host 4 has two servers, three workers and a standby worker.
type cut struct {
	what string
	cut  func(a *apart)
	// unseen reports whether the coordinator does not receive the workers' progress, so that its status cannot show it.
	unseen bool
	told   []string // kinds of events that must be reported
	// minority reports whether the coordinator reaches only one member of etcd, if the job uses etcd.
	minority bool
}

func way(from, to int) func(a *apart) { return func(a *apart) { a.lan.Cut(from, to) } }

func both(x, y int) func(a *apart) {
	return func(a *apart) { a.lan.Cut(x, y); a.lan.Cut(y, x) }
}

var cuts = []cut{
	{what: "workers and a server", cut: both(3, 1), told: []string{"unreached", "reached"}},
	{what: "a server from all", cut: func(a *apart) { a.lan.Disconnect(1) }, told: []string{"suspected"}},
	{what: "what workers send to a server", cut: way(3, 1), told: []string{"unreached", "reached"}},
	{what: "what a server sends to workers", cut: way(1, 3), told: []string{"unreached", "reached"}},
	{what: "a server and two others", cut: both(1, 4)},
	{what: "what a server sends to two others", cut: way(1, 4)},
	{what: "a server and the coordinator", cut: both(1, 0), told: []string{"suspected"}},
	{what: "what a server sends to the coordinator", cut: way(1, 0), told: []string{"suspected"}},
	{what: "what the coordinator sends to a server", cut: way(0, 1), told: []string{"suspected"}},
	{what: "workers and the coordinator", cut: both(3, 0), unseen: true, told: []string{"suspected"}},
	{what: "what workers send to the coordinator", cut: way(3, 0), unseen: true, told: []string{"suspected"}},
	{what: "what the coordinator sends to workers", cut: way(0, 3), unseen: true},
	{what: "a worker from all", cut: func(a *apart) { a.lan.Disconnect(3) }, told: []string{"suspected"}},
	{
		what:     "two halves, one with the coordinator",
		cut:      func(a *apart) { a.lan.Partition([]int{0, 1, 2}, []int{3, 4}) },
		unseen:   true,
		told:     []string{"suspected"},
		minority: true,
	},
	{what: "the coordinator from all", cut: func(a *apart) { a.lan.Disconnect(0) }, unseen: true},
}

// TestCuts: whichever hosts are partitioned, training continues during the partition and ends with the model of an
// undisturbed job on one machine. docs/guide/failures.md describes the effects of each partition.
func TestCuts(t *testing.T) {
	onlyAll(t)
	t.Parallel()
	const clocks = 600
	all, strategies := cuts, []string{"chain:2,checkpoint:20", "resend:20", "checkpoint:20"}
	if *apartStorms == 1 {
		all, strategies = cuts[:1], strategies[1:2]
	}
	for _, recovery := range strategies {
		for _, c := range all {
			t.Run(recovery+"/"+c.what, func(t *testing.T) {
				a := newApart(t, recovery, clocks, 1)
				stood := a.through(c)
				t.Logf("training paused for %.1f s", stood.Seconds())
				got := *summary(t, a.dir(0)).ModelSHA256
				want := one(t, "--clocks", strconv.Itoa(clocks), "--workers", "4", "--servers", "4", "--shards", "8")
				if got != want {
					t.Errorf("model %s; want %s\n%s", got, want, a.all())
				}
				if events := eventsOf(t, a.dir(0)); slices.Contains(c.told, "reached") &&
					!strings.Contains(events, `"reached"`) {
					t.Errorf("no event reports the partition's end:\n%s", events)
				}
			})
		}
	}
}

// says waits until the coordinator's status matches.
func (a *apart) says(pattern string) {
	a.Helper()
	await(a, func() bool { return regexp.MustCompile(pattern).MatchString(a.status(0)) }, a.all)
}

// through runs a job through a partition. It returns how long the job went without ending a clock, as far as the
// coordinator can tell.
func (a *apart) through(c cut) (stood time.Duration) {
	a.Helper()
	a.coordinates = []int{0}
	a.lead(0)
	a.serve(3, "0", "1")
	a.says("worker:0 .* live ")
	a.serve(1, "1", "0")
	a.serve(2, "1", "0")
	a.serve(4, "2", "4")
	last := -1
	reach := func(least int) {
		await(a, func() bool { last = max(last, a.clock()); return last >= least || a.over() }, a.all)
	}
	reach(60)
	c.cut(a)
	began := time.Now()
	for _, kind := range c.told {
		decides := !c.minority || a.etcds == "" // without a quorum the coordinator cannot record decisions
		if kind != "reached" && decides {
			awaitEvent(a, a.dir(0), fmt.Sprintf("%q", kind), 1)
		}
	}
	if c.unseen {
		select {
		case <-time.After(4 * time.Second): // no process can observe the workers' progress
		case <-a.Context().Done():
		}
	} else {
		reach(last + 3) // covers updates in flight
		reach(last + 30)
		stood = time.Since(began)
	}
	a.lan.Heal()
	await(a, a.over, func() string { return "the job does not end\n" + a.all() })
	if _, err := os.Stat(filepath.Join(a.dir(0), "summary.json")); err != nil {
		a.Fatal(err)
	}
	return stood
}
