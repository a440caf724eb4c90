package membership

import (
	"cmp"
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// crowd is a job of many servers and workers, all of which have sent their status at every tick for a while.
type crowd struct {
	*testing.T
	*Core
	quiet map[string]bool // these do not send
}

func newCrowd(t *testing.T, servers, workers int) *crowd {
	f := NewJobRecord(perdure.JobSpec{
		Slots: workers, Servers: servers, Shards: servers,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 10},
	}, 1, 0, nil)
	for i := range f.Slots {
		f.Slots[i] = Member{Process: target(Worker, i), PID: 1000 + i, Incarnation: 1}
		f.View.Slots[i] = protocol.SlotView{Incarnation: 1, Decided: true, Settled: true}
	}
	c := &crowd{t, New(f, patience, mutation.Set{}), map[string]bool{}}
	for i := range servers {
		c.Join(Server, i, Applicant{Process: target(Server, i), PID: i + 1})
	}
	for i := range workers {
		c.Join(Worker, i, Applicant{Process: target(Worker, i), PID: 1000 + i})
	}
	c.ticks(30)
	c.Ready()
	return c
}

// speak sends the status of all processes that are not quiet.
func (c *crowd) speak() {
	for i := range c.job.servers {
		if p := c.record.Servers[i].Process; !c.quiet[p] {
			c.ServerStatus(i, p, protocol.ServerStatus{})
		}
	}
	for i := range c.job.slots {
		if p := c.record.Slots[i].Process; !c.quiet[p] {
			c.HandleWorkerStatus(i, p, protocol.WorkerStatus{Generation: 1})
		}
	}
}

// ticks advances the time by n ticks, during which all processes that are not quiet send. It returns how many ticks had
// passed at the first kill, and the killed processes.
func (c *crowd) ticks(n int) (after int, killed []string) {
	for i := range n {
		c.speak()
		c.Tick()
		for _, k := range c.Ready().Kills {
			if killed = append(killed, k.Process); after == 0 {
				after = i + 1
			}
		}
	}
	return after, killed
}

// TestLateLoop checks that a late event loop never makes processes suspects, however long it receives nothing.
func TestLateLoop(t *testing.T) {
	c := newCrowd(t, 3, 3)
	c.quiet["server:0"], c.quiet["worker:1"] = true, true
	for range 1000 {
		c.LateTick()
	}
	if r := c.Ready(); len(r.Kills)+len(r.Events) > 0 {
		t.Fatalf("a loop that was late kills %+v: %+v", r.Kills, r.Events)
	}
	if after, killed := c.ticks(60); len(killed) != 2 {
		t.Errorf("once it listens, it kills %v after %d ticks, want both silent processes", killed, after)
	}
}

// TestLockedOut checks that the death of a process that cannot reconnect has the reason. The reason is not that of the
// next process.
func TestLockedOut(t *testing.T) {
	for _, lockedOut := range []string{"", "its certificate is revoked"} {
		c := newCrowd(t, 3, 3)
		c.quiet[target(Worker, 1)], c.quiet["next"] = true, true
		c.Disconnected(Worker, 1, target(Worker, 1), lockedOut)
		want := "worker:1 is dead: " + cmp.Or(lockedOut, "it did not come back")
		if got := c.death(t); got != want {
			t.Errorf("%q; want %q", got, want)
		}
		c.Join(Worker, 1, Applicant{Process: "next", PID: 9})
		c.Disconnected(Worker, 1, "next", "")
		if got, want := c.death(t), "worker:1 is dead: it did not come back"; got != want {
			t.Errorf("then %q; want %q", got, want)
		}
	}
}

// death returns the text of the next death.
func (c *crowd) death(t *testing.T) string {
	t.Helper()
	for range 2 * failuredetector.MaxStartingFactor * patience {
		c.speak()
		c.Tick()
		for _, e := range c.Ready().Events {
			if e.Kind == "detected" {
				return e.Text
			}
		}
	}
	t.Fatal("no process is dead")
	return ""
}

// TestUnread checks that unread data counts as a sign of life.
func TestUnread(t *testing.T) {
	c := newCrowd(t, 3, 3)
	for range 200 {
		for i := range c.job.servers {
			c.DataReceived(Server, i, target(Server, i))
			c.DataReceived(Worker, i, target(Worker, i))
		}
		c.Tick()
	}
	if r := c.Ready(); len(r.Kills) > 0 {
		t.Fatalf("processes with unread messages are killed: %+v", r.Kills)
	}
}

// TestSlowStart checks that a process which was admitted and has not sent its status is given more time, but not
// forever.
func TestSlowStart(t *testing.T) {
	c := newCrowd(t, 3, 3)
	c.ProcessDied(Server, 1, 2, "exited")
	c.quiet["slow"] = true
	c.Join(Server, 1, Applicant{Process: "slow", PID: 77})
	c.ProcessDied(Worker, 2, 1002, "exited")
	if after, killed := c.ticks(failuredetector.MaxStartingFactor*patience - 1); killed != nil {
		t.Fatalf("%v killed after %d ticks, although just starting", killed, after)
	}
	if _, killed := c.ticks(2); fmt.Sprint(killed) != "[slow]" {
		t.Errorf("killed: %v; want the one that has not started", killed)
	}
}

// TestSeveralSuspects checks that one silent process among many is suspected as usual. If several are silent, and they
// are a large share of all, the core suspects itself first, unless their connections have broken.
func TestSeveralSuspects(t *testing.T) {
	for _, x := range []struct {
		quiet  []string
		broken bool
		after  int
	}{
		{quiet: []string{"server:1"}, after: 5},
		{quiet: []string{"worker:7"}, after: 5},
		{quiet: []string{"server:1", "worker:7"}, after: 5}, // of 17
		{quiet: []string{"server:1", "worker:6", "worker:7"}, after: 5 + patience},
		{quiet: []string{"server:1", "server:2", "worker:6", "worker:7"}, after: 5 + patience},
	} {
		c := newCrowd(t, 5, 12)
		for _, p := range x.quiet {
			c.quiet[p] = true
		}
		after, killed := c.ticks(60)
		if after < x.after-1 || after > x.after || len(killed) != len(x.quiet) {
			t.Errorf("%v are quiet: %v killed after %d ticks, want all after %d", x.quiet, killed, after, x.after)
		}
	}
	c := newCrowd(t, 5, 5)
	for i := range 3 {
		c.quiet[target(Server, i)] = true
		c.Disconnected(Server, i, target(Server, i), "")
	}
	if after, killed := c.ticks(12); len(killed) != 3 || after > 10 {
		t.Errorf("%v killed, the first after %d ticks, although three connections have broken", killed, after)
	}
}

// TestBackOff checks that the limit rises each time that a process of one slot is given up while the job makes no
// progress, up to a bound, and falls back once the job progresses.
func TestBackOff(t *testing.T) {
	c := newCrowd(t, 3, 8)
	last := 0
	for round := range 8 {
		c.quiet[c.record.Slots[5].Process] = true
		after, killed := c.ticks(failuredetector.MaxBackOffFactor*patience + 5)
		if len(killed) != 1 || after < min(2*last, failuredetector.MaxBackOffFactor*patience-1) ||
			after > failuredetector.MaxBackOffFactor*patience {
			t.Fatalf("round %d: %v killed after %d ticks; before, one after %d", round, killed, after, last)
		}
		last = after
		c.settleAgain(5, fmt.Sprintf("next:%d", round))
	}
	for i := range c.job.slots {
		c.HandleWorkerStatus(i, c.record.Slots[i].Process, protocol.WorkerStatus{Generation: 1, Clock: 1})
	}
	c.Ready()
	for range 60 {
		for i := range c.job.slots {
			c.HandleWorkerStatus(i, c.record.Slots[i].Process, protocol.WorkerStatus{Generation: 1, Clock: 1})
		}
		c.Tick()
	}
	c.quiet[c.record.Slots[5].Process] = true
	after := 0
	for c.Tick(); len(c.Ready().Kills) == 0; c.Tick() {
		if after++; after > 2*patience {
			t.Fatal("not suspected, although the job has progressed since")
		}
		for i := range c.job.slots {
			if i != 5 {
				c.HandleWorkerStatus(i, c.record.Slots[i].Process, protocol.WorkerStatus{Generation: 1, Clock: 1})
			}
		}
		for i := range c.job.servers {
			c.ServerStatus(i, target(Server, i), protocol.ServerStatus{})
		}
	}
}

// settleAgain has another process take a dead worker's slot, as if all shards had sent the necessary reports, and speak
// for a while.
func (c *crowd) settleAgain(slot int, process string) {
	c.ProcessDied(Worker, slot, c.record.Slots[slot].PID, "killed")
	c.Join(Worker, slot, Applicant{Process: process, PID: 2000})
	c.rec.changeSlot(slot,
		protocol.SlotView{Incarnation: c.record.Slots[slot].Incarnation, Decided: true, Settled: true})
	c.job.detector.RestartSilence(&c.job.slots[slot].liveness)
	c.ticks(40)
}

// TestWaitingBreaks checks that a worker that must wait is not expected to send. If its connection breaks, it has as
// long to reconnect as any starting process.
func TestWaitingBreaks(t *testing.T) {
	c := newCrowd(t, 3, 3)
	c.ProcessDied(Worker, 2, 1002, "exited")
	c.Join(Worker, 2, Applicant{Process: "waits", PID: 77})
	c.quiet["waits"] = true
	for range 3 {
		c.ticks(5 * patience)
		c.Disconnected(Worker, 2, "waits", "")
		if _, killed := c.ticks(2 * patience); killed != nil {
			t.Fatalf("%v killed, although it waited for its slot and its connection broke just now", killed)
		}
		if _, _, v := c.Join(Worker, 2, Applicant{Process: "waits", PID: 77}); v != Wait {
			t.Fatalf("admission %d when it reconnects", v)
		}
	}
	c.Disconnected(Worker, 2, "waits", "")
	if _, killed := c.ticks(failuredetector.MaxStartingFactor*patience + 1); fmt.Sprint(killed) != "[waits]" {
		t.Errorf("killed: %v; want the one that never reconnected", killed)
	}
}
