package main

import (
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// saved returns the settings of a small job whose chains keep checkpoints.
func saved(more ...string) []string {
	return small(append([]string{"--servers", "3", "--recovery", "chain:2,checkpoint:20"}, more...)...)
}

// TestSavedChain: a chain with checkpoints acts like a chain while each shard has a server, and rolls back to a
// checkpoint when a shard has none left. The model is that of an undisturbed job.
func TestSavedChain(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		fault    string
		failures int
		back     string // last words of the rollback's event; "": no rollback
	}{
		{"kill:server:0@clock:33", 1, ""},
		{"kill:server:*@clock:33", 3, "all roll back to clock 20 (generation 2)"},
		{"kill:server:*@clock:5", 3, "all roll back to clock 0 (generation 2)"}, // no cut is durable yet
	} {
		t.Run(c.fault, func(t *testing.T) {
			t.Parallel()
			s, dir := trained(t, saved("--fault", c.fault)...)
			sameModel(t, s, one(t), dir)
			checkFailures(t, s, c.failures)
			checkCounts(t, s)
			events := eventsOf(t, dir)
			if back := strings.Contains(events, "roll back"); back != (c.back != "") ||
				!strings.Contains(events, c.back) || back != (*s.ClocksRedone > 0) {
				t.Errorf("%d clocks redone; want a rollback: %q; the events are\n%s", *s.ClocksRedone, c.back, events)
			}
		})
	}
}

// TestSavedChainResumed: a run resumes from a chain's checkpoint under the same strategy and under any other.
func TestSavedChainResumed(t *testing.T) {
	t.Parallel()
	_, dir := trained(t, saved("--clocks", "40")...)
	for _, recovery := range []string{"", "chain:3,checkpoint:7", "checkpoint:15", "chain:2", "none"} {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			args := []string{
				"train", "--quiet", "--resume", dir, "--clocks", "60", "--fault", "kill:server:1@clock:50",
			}
			if recovery != "" {
				args = append(args, "--recovery", recovery)
			}
			s, _ := trained(t, args...)
			checkCounts(t, s)
			if same := *s.ModelSHA256 == one(t); same == (recovery == "none") || same != (*s.UpdatesLost == 0) {
				t.Errorf("model %s, %d updates lost; the undisturbed one is %s", *s.ModelSHA256, *s.UpdatesLost, one(t))
			}
		})
	}
}

// TestAuto: where the checkpoint interval is chosen automatically, the reason is reported. The model is that of an
// undisturbed job, whichever processes die and wherever the cuts are.
func TestAuto(t *testing.T) {
	t.Parallel()
	for _, recovery := range []string{"checkpoint:auto", "checkpoint:auto,async", "resend:auto"} {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			s, dir := trained(t, small("--recovery", recovery, "--mtbf", "500ms", "--compute-ms", "20",
				"--fault", "kill:server:0@clock:30", "--fault", "kill:coordinator@clock:40", "--fault",
				"kill:server:1@clock:48")...)
			sameModel(t, s, one(t), dir)
			checkFailures(t, s, 3)
			checkCounts(t, s)
			events := eventsOf(t, dir)
			if n := strings.Count(events, "is requested"); n < 1 ||
				strings.Contains(events, "all roll back to clock 0 ") {
				t.Errorf("%d checkpoints requested; the events are\n%s", n, events)
			}
			if a := s.Saving; a == nil || a.Interval <= 0 ||
				!strings.Contains(a.Why, "a failure occurs every 0.5 s (given)") || !strings.Contains(events, a.Why) {
				t.Errorf("the summary's interval is %+v; the events are\n%s", a, events)
			}
			if a := s.Saving; a.Failures != 2 {
				t.Errorf("%d failures counted; two servers were killed", a.Failures)
			}
		})
	}
}

// TestLastReplica: without checkpoints the death of a shard's last server ends the job with one line that says what to
// do. A job without chains gives no such advice.
func TestLastReplica(t *testing.T) {
	t.Parallel()
	for recovery, says := range map[string]string{
		"chain:2": "start the job again with --recovery chain:2,checkpoint:100, which keeps one every 100 " +
			"clocks, or with a longer chain",
		"chain:3,async": "--recovery chain:3,checkpoint:100",
	} {
		t.Run(recovery, func(t *testing.T) {
			wantRefused(t, exitError, regexp.QuoteMeta(says), small("--servers", "3", "--recovery", recovery, "--fault",
				"kill:server:*@clock:30", "--out", newFolder(t))...)
		})
	}
}

// TestNothingSaved: a run whose strategy keeps no checkpoints cannot be resumed.
func TestNothingSaved(t *testing.T) {
	_, dir := trained(t, small("--recovery", "none", "--clocks", "3")...)
	wantOut(t, 2, []string{"train", "--resume", dir},
		"perdure: "+dir+": a run with recovery none keeps no checkpoints and cannot be resumed; to be able to "+
			"resume, start a run with, for example, resend:C or chain:2,checkpoint:C; start over with --from "+
			filepath.Join(dir, "run.json")+"\n")
}

// TestResumedMTBF: a run keeps its time between failures when it resumes under another strategy with automatic
// intervals. Other strategies do not use it.
func TestResumedMTBF(t *testing.T) {
	_, dir := trained(t, small("--recovery", "checkpoint:auto", "--mtbf", "6h", "--clocks", "5")...)
	for recovery, want := range map[string]float64{"resend:auto": 6 * 3600, "resend:20": 0} {
		a := clocks(9)
		a.Shape.Recovery, a.Given["recovery"] = recovery, true
		s, err := a.Resume(dir)
		must(t, err)
		if s.Job.MTBF != want {
			t.Errorf("%s: the time between failures is %v s, want %v", recovery, s.Job.MTBF, want)
		}
	}
}
