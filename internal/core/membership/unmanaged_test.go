package membership

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestSilentGuest checks that a silent unmanaged process is not reported as killed and replaced, because no supervisor
// does that.
func TestSilentGuest(t *testing.T) {
	for _, c := range []struct {
		own    bool // the job's workers are unmanaged
		asked  int  // the slot
		killed bool
	}{{false, 0, true}, {false, -1, false}, {true, 0, false}} {
		job := perdure.JobSpec{
			Slots: 1, Servers: 1, Shards: 1, OwnWorkers: c.own,
			Consistency: perdure.Consistency{Kind: perdure.BSP},
			Recovery:    perdure.Recovery{Kind: perdure.RecoverResend, Auto: true},
		}
		core := New(NewJobRecord(job, 1, 0, nil), 15, mutation.Set{})
		come(t, core, 0, "server", Granted)
		st := protocol.ServerStatus{}
		core.Join(Worker, c.asked, Applicant{Process: "worker", PID: 9})
		core.record.View.Slots[0].Settled = true
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

// TestNeverSpoke checks that a worker which was admitted, never sent a status and lost its connection is given up as
// soon as any other, so that it cannot block a slot by connecting once. A connected worker may be loading, and one
// whose slot is not settled may reconnect. A process that asks for any slot gets this one after a third of that time;
// one that asks for its number gets it immediately.
func TestNeverSpoke(t *testing.T) {
	for name, c := range map[string]struct {
		connected, unsettled bool
		asks                 int // for a slot, at each tick; -2: no process does
		after                int // ticks until the slot is vacant or has another process
	}{
		"it is gone":                    {asks: -2, after: patience},
		"it is gone, any slot is asked": {asks: -1, after: patience/3 + 1},
		"it is gone, its slot is asked": {asks: 0, after: 1},
		"it waits for its slot": {
			unsettled: true, asks: -2,
			after: failuredetector.MaxStartingFactor * patience,
		},
		"it is loading": {
			connected: true, asks: -2,
			after: failuredetector.MaxStartingFactor * patience,
		},
		"it is loading, others ask": {
			connected: true, asks: 0,
			after: failuredetector.MaxStartingFactor * patience,
		},
	} {
		job := perdure.JobSpec{
			Slots: 1, Servers: 1, Shards: 1, Consistency: perdure.Consistency{Kind: perdure.BSP},
			Recovery: perdure.Recovery{Kind: perdure.RecoverResend, Auto: true},
		}
		core := New(NewJobRecord(job, 1, 0, nil), patience, mutation.Set{})
		come(t, core, 0, "server", Granted)
		core.Join(Worker, 0, Applicant{Process: "thief", PID: 9})
		core.record.View.Slots[0].Settled = !c.unsettled
		if !c.connected {
			core.Disconnected(Worker, 0, "thief", "")
		}
		after := 0
		for core.record.Slots[0].Process == "thief" && !core.job.slots[0].gone &&
			!core.job.slots[0].liveness.IsSuspect() {
			after++
			core.ServerStatus(0, "server", protocol.ServerStatus{})
			core.Tick()
			core.Ready()
			if c.asks >= -1 {
				core.Join(Worker, c.asks, Applicant{Process: "worker", PID: 10})
			}
		}
		if after != c.after {
			t.Errorf("%s: it has the slot for %d ticks, want %d", name, after, c.after)
		}
	}
}
