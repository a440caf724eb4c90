package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/rundir"
)

// TestFaultKinds runs each job through a group of faults, one after another. The groups cover every kind of fault. No
// fault changes a bsp job's model.
func TestFaultKinds(t *testing.T) {
	t.Parallel()
	type kind struct {
		fault   string
		noticed int // how many of the faults must be detected and recovered from
		faults  int
	}
	for name, group := range map[string][]kind{
		"servers": {
			{"term:server:0@clock:10", 0, 1}, // it hands over, so nothing fails
			{"freeze:server:1@clock:25+300ms", 0, 1},
			{"cut:server:0@clock:40+300ms", 0, 1},
		},
		"workers": {
			{"term:worker:1@clock:10+100ms", 1, 1},
			{"freeze:worker:0@clock:25", 1, 1}, // permanently: it is suspected, killed and replaced
			{"cut:worker:2@clock:40", 1, 1},
		},
		"coordinator": {{"kill:coordinator@clock:15+300ms", 1, 1}, {"freeze:coordinator@clock:40+300ms", 0, 1}},
		"slower": {
			{"slow*3:worker:0@clock:10+300ms", 0, 1},
			{"slow*2:server:*@clock:15", 0, 2},
			{"jitter*2:worker:*@clock:20", 0, 3},
			{"jitter*1.5:coordinator@clock:25", 0, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			args := small()
			for _, k := range group {
				args = append(args, "--fault", k.fault)
			}
			s, dir := trained(t, args...)
			sameModel(t, s, one(t), dir)
			listed := s.Failures // in the order in which they struck
			for _, k := range group {
				if len(listed) < k.faults {
					t.Fatalf("the summary does not list %s: %+v", k.fault, s.Failures)
				}
				for _, f := range listed[:k.noticed] {
					if f.DetectedAfterMs == nil || f.ServingAgainAfterMs == nil {
						t.Errorf("the summary lacks the time of detection or recovery of %s: %+v", k.fault, f)
					}
				}
				listed = listed[k.faults:]
			}
			if len(listed) > 0 {
				t.Errorf("failures that were not injected: %+v", listed)
			}
		})
	}
}

// TestFrozen: a coordinator or log process that is suspended for a moment continues. One that is suspended permanently
// is detected by timeout, killed and replaced. Neither changes the model.
func TestFrozen(t *testing.T) {
	t.Parallel()
	want := one(t)
	frozen := func(t *testing.T, fault, recovery string, replaced int, words ...string) {
		t.Parallel() // also parallel to the tests that wait
		s, dir := trained(t, small("--recovery", recovery, "--fault", fault)...)
		sameModel(t, s, want, dir)
		events := eventsOf(t, dir)
		for _, w := range words {
			if n := strings.Count(events, w); n != replaced {
				t.Errorf("%d events contain %q, want %d\n%s", n, w, replaced, events)
			}
		}
		if replaced > 0 {
			checkFailures(t, s, 1)
		}
	}
	for target, c := range map[string]struct {
		recovery string
		words    []string
	}{
		"coordinator": {"resend:10", nil},
		"log":         {"stateless", []string{"log is dead: killed by SIGKILL", "log serves again"}},
	} {
		words := append(c.words, target+" has been silent for too long; it is killed and replaced")
		t.Run(target+" for a moment", func(t *testing.T) {
			frozen(t, "freeze:"+target+"@clock:20+300ms", c.recovery, 0, words...)
		})
		t.Run(target+" for good",
			func(t *testing.T) { frozen(t, "freeze:"+target+"@clock:20", c.recovery, 1, words...) })
	}
}

// TestNoneCountsLosses: without checkpoints a killed server's rows are reset, and the job reports how many updates were
// lost.
func TestNoneCountsLosses(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"bsp", "ssp:2", "asp"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			s, dir := trained(t, small("--consistency", model, "--recovery", "none", "--fault",
				"kill:server:0@clock:20", "--fault", "kill:server:0@clock:40")...)
			checkFailures(t, s, 2)
			if *s.UpdatesLost == 0 || s.Failures[0].UpdatesLost == nil || *s.Failures[0].UpdatesLost == 0 {
				t.Errorf("no lost updates were counted: %+v\n%s", s, logs(dir))
			}
			if *s.ClocksRedone != 0 {
				t.Errorf("%d clocks redone without a checkpoint to roll back to", *s.ClocksRedone)
			}
			checkCounts(t, s)
		})
	}
}

// TestModels trains under each consistency model while processes are killed. A rollback returns all shards to a cut,
// and every later update counts exactly once. The worker is killed early: without a staleness bound it may be far ahead
// of the job's clock, and must not have finished.
func TestModels(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"ssp:0", "ssp:2", "asp", "essp:2", "vap:0.5"} {
		t.Run(model, func(t *testing.T) {
			t.Parallel()
			s, _ := trained(t, small("--consistency", model, "--fault", "kill:server:1@clock:15", "--fault",
				"kill:worker:0@clock:25")...)
			checkFailures(t, s, 2)
			if *s.UpdatesLost != 0 {
				t.Errorf("%d updates lost", *s.UpdatesLost)
			}
			checkCounts(t, s)
		})
	}
}

// checkCounts checks what the summary of a small job must contain in any case.
func checkCounts(t *testing.T, s rundir.Summary) {
	t.Helper()
	whole := int64(60 * s.Workers * s.Shards)
	if s.Clocks != 60 || *s.UpdatesApplied+*s.UpdatesLost != whole {
		t.Errorf("%d clocks, %d updates applied, %d lost; the job has %d", s.Clocks, *s.UpdatesApplied, *s.UpdatesLost,
			whole)
	}
	var lost int64
	for _, f := range s.Failures {
		if f.UpdatesLost != nil {
			lost += *f.UpdatesLost
		}
	}
	if lost > *s.UpdatesLost {
		t.Errorf("the failures lost %d updates, but the model lacks only %d", lost, *s.UpdatesLost)
	}
	if len(s.ClockDifferential) == 0 || len(s.ReadLag) == 0 {
		t.Error("the summary has no histograms")
	}
}

// TestTooLate: a planned fault whose time the job does not reach is reported.
func TestTooLate(t *testing.T) {
	code, stdout, stderr := invoke(t, small("--fault", "kill:server:0@3600s", "--out",
		newFolder(t))...)
	if want := "did not happen: kill:server:0@3600s"; code != 0 || !strings.Contains(stdout, want) {
		t.Errorf("exit code %d, %s%s; want %q", code, stdout, stderr, want)
	}
}
