package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/rundir"
)

// checkLost checks a run that lost updates and continued without a rollback: no shard has rolled back, and every update
// that is not counted as lost was applied.
func checkLost(t *testing.T, s rundir.Summary, dir string) {
	t.Helper()
	all := int64(s.Clocks) * int64(s.Workers) * int64(s.Shards)
	if *s.UpdatesApplied+*s.UpdatesLost != all || *s.UpdatesLost < 0 {
		t.Errorf("%d updates applied and %d lost, of %d", *s.UpdatesApplied, *s.UpdatesLost, all)
	}
	events := eventsOf(t, dir)
	if strings.Contains(events, "roll back") || !strings.Contains(events, "(no copy exists)") {
		t.Errorf("the events lack the lost updates, or report a rollback\n%s", events)
	}
}

// TestPartial: a worker and a server are killed at the same time, before the first checkpoint. The worker's updates are
// lost on that server's shards and counted. There is no rollback.
func TestPartial(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"bsp", "ssp:2", "asp"} {
		t.Run(model, func(t *testing.T) {
			s, dir := trained(t, small("--recovery", "resend:1000,partial", "--consistency", model,
				"--fault", "kill:worker:1@clock:30", "--fault", "kill:server:0@clock:30", "--compute-ms", "5")...)
			checkLost(t, s, dir)
			if most := int64(
				60 * 3,
			); *s.UpdatesLost == 0 ||
				*s.UpdatesLost > most { // one worker's updates on three shards
				t.Errorf("%d updates lost, want 1 to %d", *s.UpdatesLost, most)
			}
			if s.OlderStates != nil {
				t.Errorf("%d older states were loaded, but the job saves none", s.StatesLost)
			}
			checkFailures(t, s, 2)
		})
	}
}
