package main

import (
	"strings"
	"testing"
)

// TestTakeOver: when a server stays unavailable, the other servers take over its shards, so a chain tolerates the next
// death. The server receives shards again when it returns. Under bsp the model is that of an undisturbed job.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	args := small("--servers", "4", "--recovery", "chain:2", "--clocks", "150", "--compute-ms", "10")
	calm, _ := trained(t, args...)
	s, dir := trained(t, append(args, "--take-over-after", "100ms", "--fault", "kill:server:3@clock:10+1s",
		"--fault", "kill:server:2@clock:60+1h")...)
	if *s.ModelSHA256 != *calm.ModelSHA256 || *s.UpdatesLost != 0 || *s.ClocksRedone != 0 {
		t.Errorf("%d updates lost, %d clocks redone, model %s, undisturbed %s", *s.UpdatesLost, *s.ClocksRedone,
			*s.ModelSHA256, *calm.ModelSHA256)
	}
	events := eventsOf(t, dir)
	for _, words := range []string{
		"server:3 has not come back; other servers take over", "server:2 has not come back; other servers take over",
	} {
		if !strings.Contains(events, words) {
			t.Errorf("no event contains %q\n%s", words, events)
		}
	}
	// A returning server gets replicas: before the second death to spread the load, and later to replace lost ones.
	if !strings.Contains(events, "server:3 gets a replica of shard") &&
		!strings.Contains(events, "server:3 starts copying shard") {
		t.Errorf("server:3 holds nothing after its return\n%s", events)
	}
}

// TestTakeOverOrphans: the others also take over shards that no live server has, and training continues.
func TestTakeOverOrphans(t *testing.T) {
	t.Parallel()
	for _, recovery := range []string{"none", "resend:20", "checkpoint:20", "stateless", "scar:20"} {
		t.Run(recovery, func(t *testing.T) {
			t.Parallel()
			_, dir := trained(t, small("--recovery", recovery, "--clocks", "60", "--take-over-after", "100ms",
				"--fault", "kill:server:1@clock:30+1h")...)
			if events := eventsOf(t, dir); !strings.Contains(events, "server:1 has not come back; other servers") {
				t.Error(events)
			}
		})
	}
}

// TestTakeOverMistakes: invalid arguments are rejected.
func TestTakeOverMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"5": `--take-over-after "5"; write a time`, "-1s": `write a time`, "10us": `write a time`,
	} {
		wantRefused(t, exitUsage, want, small("--take-over-after="+text, "--out", newFolder(t))...)
	}
	wantRefused(t, exitUsage, "--take-over-after has no effect with --no-replace",
		small("--take-over-after", "5s", "--no-replace", "--out", newFolder(t))...)
}
