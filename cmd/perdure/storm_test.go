package main

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure/rundir"
)

var (
	stormRuns = flag.Int("storm.runs", 4, "jobs that TestStorm takes through random kills")
	stormSeed = flag.Uint64("storm.seed", 0, "seed of the first; 0: from the clock")
)

// TestSameModel: under bsp a job is a function of its seed. The same model comes
// out whatever the number of servers and shards, and whatever is killed.
func TestSameModel(t *testing.T) {
	cases := []struct {
		name     string
		more     []string
		failures int
		kind     []string
	}{
		{"again", nil, 0, nil},
		{"other servers and shards", []string{"--servers", "3", "--shards", "11"}, 0, nil},
		{"killed", []string{
			"--fault", "kill:server:0@clock:15", "--fault", "kill:server:1@clock:30+200ms",
			"--fault", "kill:worker:2@clock:40", "--fault", "kill:coordinator@clock:50",
		}, 4, nil},
		{"all servers killed at once", []string{"--fault", "kill:server:*@clock:25"}, 2, nil},
		{"all workers killed at once", []string{"--fault", "kill:worker:*@clock:25"}, 3, nil},
		{"half of the shards dropped", []string{"--fault", "kill:shards:0.5@clock:25"}, 1, nil},
		{"server and coordinator killed at once", []string{"--fault", "kill:server:1@clock:33", "--fault", "kill:coordinator@clock:33"}, 2, nil},
		{"state beside sparse rows, killed", []string{"--servers", "3", "--shards", "11", "--fault", "kill:server:2@clock:25", "--fault", "kill:worker:1@clock:40"}, 2, kinds[3]},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := one(t, c.kind...)
			s, dir := trained(t, small(append(c.kind[:len(c.kind):len(c.kind)], c.more...)...)...)
			if got := *s.ModelSHA256; got != want {
				t.Errorf("model %s, want %s\n%s", got, want, logs(dir))
			}
			checkFailures(t, s, c.failures)
			if *s.UpdatesLost != 0 {
				t.Errorf("%d updates lost", *s.UpdatesLost)
			}
		})
	}
}

// checkFailures checks that all failures were noticed and outlived.
func checkFailures(t *testing.T, s rundir.Summary, want int) {
	t.Helper()
	if len(s.Failures) != want {
		t.Errorf("%d failures in the summary, want %d: %+v", len(s.Failures), want, s.Failures)
	}
	for _, f := range s.Failures {
		if f.DetectedAfterMs == nil || f.ServingAgainAfterMs == nil {
			t.Errorf("%s of %s: the summary does not say when it was noticed and over: %+v", f.Kind, f.Target, f)
		}
	}
}

// kinds are the jobs that storms are about: with dense and sparse tables, with
// and without state beside the rows.
var kinds = [][]string{nil, {"--rule", "adam"}, {"--sparse"}, {"--rule", "adam", "--sparse"}}

// TestStorm takes jobs through random kills, each kind in turn: every one ends
// with exit code 0 and the model of its undisturbed twin.
// go test -run TestStorm -storm.runs=1 -storm.seed=S replays one.
func TestStorm(t *testing.T) {
	seed := *stormSeed
	if seed == 0 {
		seed = uint64(time.Now().UnixNano()) % 1e9
	}
	for i := range uint64(*stormRuns) {
		faults, kind := stormFaults(seed+i), kinds[(seed+i)%uint64(len(kinds))]
		t.Run(fmt.Sprintf("seed=%d", seed+i), func(t *testing.T) {
			want := one(t, kind...)
			t.Logf("replay with -storm.runs=1 -storm.seed=%d: %s --fault %s", seed+i, strings.Join(kind, " "), strings.Join(faults, " --fault "))
			args := small(kind...)
			for _, f := range faults {
				args = append(args, "--fault", f)
			}
			s, dir := trained(t, args...)
			if got := *s.ModelSHA256; got != want {
				t.Errorf("model %s, want %s\n%s", got, want, logs(dir))
			}
		})
	}
}

// stormFaults draws three kills: anybody, at any clock or time, some for good a
// while.
func stormFaults(seed uint64) (faults []string) {
	rng := rand.New(rand.NewPCG(seed, 0x5706))
	targets := []string{"server:0", "server:1", "server:*", "worker:0", "worker:1", "worker:2", "worker:*", "coordinator"}
	for range 3 {
		f := "kill:" + targets[rng.IntN(len(targets))]
		if rng.IntN(2) == 0 {
			f += fmt.Sprintf("@clock:%d", rng.IntN(60))
		} else {
			f += fmt.Sprintf("@%dms", rng.IntN(300))
		}
		if rng.IntN(3) == 0 {
			f += fmt.Sprintf("+%dms", 1+rng.IntN(500))
		}
		faults = append(faults, f)
	}
	return faults
}
