package main

import (
	"strings"
	"testing"
)

// TestTakeOver: when a server stays unavailable, the other servers take over its shards, so a chain tolerates the next
// death. A server that joins in its place receives shards again. Under bsp the model is that of an undisturbed job.
func TestTakeOver(t *testing.T) {
	t.Parallel()
	dir := newFolder(t)
	job := start(t, append(endless(dir), "--servers", "4", "--recovery", "chain:2,checkpoint:100000", "--grace", "1h",
		"--compute-ms", "5", "--take-over-after", "100ms", "--fault", "kill:server:3@clock:10+1h")...)
	awaitEvent(t, dir, "server:3 has not come back; other servers take over", 1)
	coordinator := awaitStatus(t, dir, `join it at (\S+)\n`)[1]
	start(t, "server", "--join", coordinator, "--run", dir)
	awaitEvent(t, dir, "server:3 gets a replica of shard", 1)
	wantOut(t, 0, []string{"fault", "--run", dir, "kill:server:2@0s+1h"}, "planned")
	awaitEvent(t, dir, "server:2 has not come back; other servers take over", 1)
	if code, _, errs := job.Stop(); code != exitSignal {
		t.Errorf("exit code %d: %s", code, errs)
	}
	costsNothing(t, dir)
	resumesWell(t, dir)
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
