package membership

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/core/words"
)

// TestSilentGuest: nobody says of a process that came by itself that it is killed and
// replaced, if it is silent: nobody does that.
func TestSilentGuest(t *testing.T) {
	for _, c := range []struct {
		own    bool // the job's workers are
		asked  int  // the slot
		killed bool
	}{{false, 0, true}, {false, -1, false}, {true, 0, false}} {
		job := perdure.JobSpec{
			Slots: 1, Servers: 1, Shards: 1, OwnWorkers: c.own,
			Consistency: perdure.Consistency{Kind: perdure.BSP},
			Recovery:    perdure.Recovery{Kind: perdure.RecoverResend, Auto: true},
		}
		core := New(Begin(job, 1, 0, nil), 15, weaken.Set{})
		come(t, core, 0, "server", Granted)
		st := words.ServerStatus{}
		core.Join(Worker, c.asked, Newcomer{Process: "worker", PID: 9})
		core.facts.View.Slots[0].Settled = true
		var text string
		for range 2000 {
			core.ServerStatus(0, "server", st)
			core.Tick()
			for _, e := range core.Ready().Events {
				if e.Kind == "suspected" && e.Target == "worker:0" {
					text = e.Text
				}
			}
		}
		if !strings.HasPrefix(text, "worker:0 has been silent for too long; ") ||
			strings.Contains(text, "killed and replaced") != c.killed {
			t.Errorf("own workers: %v, slot asked for: %d: told %q", c.own, c.asked, text)
		}
	}
}
