package main

import (
	"strings"
	"testing"
)

// TestSuspended: except under bsp, the other workers do not wait for a worker that does not return. When it returns, it
// participates again.
func TestSuspended(t *testing.T) {
	t.Parallel()
	args := small("--consistency", "ssp:1", "--recovery", "chain:2", "--clocks", "200", "--compute-ms", "10",
		"--suspend-after", "300ms")
	s, dir := trained(t, append(args, "--fault", "kill:worker:1@clock:10+1h", "--fault",
		"kill:worker:2@clock:12+800ms")...)
	if s.Clocks != 200 || *s.UpdatesLost != 0 {
		t.Errorf("%d clocks, %d updates lost", s.Clocks, *s.UpdatesLost)
	}
	if whole := int64(3 * 200 * 6); *s.UpdatesApplied >= whole {
		t.Errorf("%d updates applied; a job without suspensions has %d", *s.UpdatesApplied, whole)
	}
	events := eventsOf(t, dir)
	for words, times := range map[string]int{
		"no process has taken over worker:1; the others continue": 1,
		"no process has taken over worker:2; the others continue": 1,
		"worker:1 joins": 0, "worker:2 joins; it takes part from clock": 1,
	} {
		if n := strings.Count(events, words); n != times {
			t.Errorf("%d events contain %q, want %d\n%s", n, words, times, events)
		}
	}
}

// TestSuspendMistakes: invalid settings are rejected.
func TestSuspendMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"5":     `--suspend-after "5"; write a time`,
		"-1s":   `--suspend-after "-1s"; write a time`,
		"10us":  `write a time`,
		"300ms": `bsp waits for every worker`,
	} {
		wantRefused(t, exitUsage, want, small("--suspend-after="+text, "--out", newFolder(t))...)
	}
}
