package main

import (
	"fmt"
	"regexp"
	"testing"
)

// TestSuspended: except under bsp, the other workers do not wait for a worker that does not return. A worker that takes
// its slot later participates again.
func TestSuspended(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job := start(t, append(endless(dir), "--consistency", "ssp:1", "--recovery", "chain:2", "--suspend-after", "300ms",
		"--fault", "kill:worker:1@clock:10+1h", "--fault", "kill:worker:2@clock:12+1h")...)
	awaitEvent(t, dir, "no process has taken over worker:1; the others continue", 1)
	awaitEvent(t, dir, "no process has taken over worker:2; the others continue", 1)
	coordinator := awaitStatus(t, dir, `training, clock (?:[2-9]\d|\d{3,}) (?s:.*)join it at (\S+)\n`)[1]
	worker := start(t, "worker", "--join", coordinator, "--secret-file", secretOf(dir))
	awaitEvent(t, dir, "joins; it takes part from clock", 1)
	awaitStatus(t, dir, fmt.Sprintf(`worker:[12] +pid %d .* live .*, from clock [1-9]`, worker.Process.Pid))
	if code, _, errs := job.Stop(); code != exitSignal {
		t.Errorf("exit code %d: %s", code, errs)
	}
	events := eventsOf(t, dir)
	for pattern, times := range map[string]int{
		"no process has taken over worker:[12]; the others continue": 2, "worker:[12] joins; it takes part": 1,
		`"updates_lost":[1-9]`: 0,
	} {
		if n := len(regexp.MustCompile(pattern).FindAllString(events, -1)); n != times {
			t.Errorf("%d events contain %q, want %d\n%s", n, pattern, times, events)
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
