package main

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/run/rundir"
)

// checkLost checks a run that has lost updates where nobody goes back for them: nobody has, and
// each that is not counted is there.
func checkLost(t *testing.T, s rundir.Summary, dir string) {
	t.Helper()
	all := int64(s.Clocks) * int64(s.Workers) * int64(s.Shards)
	if *s.UpdatesApplied+*s.UpdatesLost != all || *s.UpdatesLost < 0 {
		t.Errorf("%d updates are applied and %d lost, of %d", *s.UpdatesApplied, *s.UpdatesLost, all)
	}
	events := eventsOf(t, dir)
	if strings.Contains(events, "roll back") || !strings.Contains(events, "(no copy exists)") {
		t.Errorf("the events do not say that updates are lost, or all have gone back\n%s", events)
	}
}

// TestPartial: a worker and a server are killed at once, before there is a checkpoint. What the
// worker had done is lost on that server's shards, and counted; nobody goes back.
func TestPartial(t *testing.T) {
	t.Parallel()
	for _, model := range []string{"bsp", "ssp:2", "asp"} {
		t.Run(model, func(t *testing.T) {
			s, dir := trained(t, small("--recovery", "resend:1000,partial", "--consistency", model,
				"--fault", "kill:worker:1@clock:30", "--fault", "kill:server:0@clock:30", "--compute-ms", "5")...)
			checkLost(t, s, dir)
			if most := int64(60 * 3); *s.UpdatesLost == 0 || *s.UpdatesLost > most { // of one worker, on three shards
				t.Errorf("%d updates are lost, of %d", *s.UpdatesLost, most)
			}
			if s.OlderStates != nil {
				t.Errorf("%d older states were given, and nothing is ever saved", s.StatesLost)
			}
			checkFailures(t, s, 2)
		})
	}
}
