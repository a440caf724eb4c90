package membership

import (
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

const patience = 15 // ticks: 1.5 s with a tick every 100 ms

// TestFrozenServer checks that a server that sends at every tick is suspected after 5 ticks of silence, and that it
// comes back without replicas.
func TestFrozenServer(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: 2, Shards: 1,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2},
	}, patience)
	c.runHealthy(30)
	c.process(Server, 1).silent = true
	silent := 0
	for !c.core.job.servers[1].liveness.IsSuspect() {
		if silent++; silent > patience {
			t.Fatal("not suspected")
		}
		c.report(Server, 0)
		c.report(Worker, 0)
		c.core.Tick()
	}
	if silent != 4 { // one more tick passed after its latest status
		t.Errorf("suspected after %d silent ticks, want 4", silent)
	}
	r := c.core.Ready() // no supervisor is there to kill it
	if n := r.Record.View.Shards[0].Replicas(); n != 1 || len(r.Kills) != 1 {
		t.Fatalf("%d replicas, %d to be killed", n, len(r.Kills))
	}
	c.saved = r.Record.Clone()
	c.process(Server, 1).silent = false
	c.report(Server, 1)
	sv := &c.saved.View.Shards[0]
	if sv.Replicas() != 1 || sv.Joining == nil || sv.Joining.Server != 1 || sv.Joining.Since != c.saved.View.Revision {
		t.Fatalf("it comes back to %+v in revision %d", *sv, c.saved.View.Revision)
	}

	// A report on its former replica does not make it a member.
	said := protocol.ShardStatus{
		Shard: 0, Generation: 1, Epoch: sv.Epoch, Since: sv.Joining.Since - 1, Ready: true,
		Joined: true,
	}
	c.core.ServerStatus(1, c.servers[1].name, protocol.ServerStatus{Shards: []protocol.ShardStatus{said}})
	if n := c.core.Record().View.Shards[0].Replicas(); n != 1 {
		t.Fatalf("%d replicas because of a report on a former replica", n)
	}
	said.Since++
	c.core.ServerStatus(1, c.servers[1].name, protocol.ServerStatus{Shards: []protocol.ShardStatus{said}})
	if n := c.core.Record().View.Shards[0].Replicas(); n != 2 {
		t.Fatalf("%d replicas, although it has joined", n)
	}
}

// TestDeadlockedServer checks that a server that holds its lock for as long as an apply takes is not suspected, while
// one that is deadlocked and keeps sending heartbeats is given up within twice the bound. The bound for its replacement
// depends on the longest reported hold, and doubles while the job makes no progress.
func TestDeadlockedServer(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: 2, Shards: 2,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverResend, Every: 2},
	}, patience)
	c.runHealthy(30)
	turn := func() {
		for i := range 2 {
			c.start(Server, i)
			if p := c.process(Server, i); !p.connected {
				c.join(Server, i)
			}
			c.follow(Server, i)
			c.report(Server, i)
		}
		c.follow(Worker, 0)
		c.report(Worker, 0)
		c.core.Tick()
		c.flush()
	}
	// holds reports a lock as held for a number of seconds. It returns the number of seconds after which the server is
	// given up, or 0 if the lock is released before that.
	holds := func(seconds int) float64 {
		kills := strings.Count(c.told.String(), "kill: ")
		for held := range 10 * seconds {
			c.servers[1].hold.Shard, c.servers[1].hold.Ms = 1, 100*int64(held)
			if turn(); strings.Count(c.told.String(), "kill: ") > kills {
				return float64(held) / 10
			}
		}
		c.servers[1].hold = protocol.LockHold{LongestMs: max(c.servers[1].hold.LongestMs, 1000*int64(seconds))}
		turn()
		return 0
	}
	if at := holds(2); at != 0 {
		t.Fatalf("given up after %v s of an apply that takes 2", at)
	}
	if at := holds(30); at <= minHoldSeconds || at > 2*minHoldSeconds {
		t.Fatalf("given up after %v s, want %d to %d", at, minHoldSeconds, 2*minHoldSeconds)
	}
	if at := holds(60); at <= 2*minHoldSeconds-1 || at > 2*minHoldSeconds+1 {
		t.Fatalf("its replacement is given up after %v s, want about %d", at, 2*minHoldSeconds)
	}
	c.runHealthy(30) // the job makes progress
	if at := holds(9); at != 0 {
		t.Fatalf("given up after %v s of an apply that takes 9", at)
	}
	if at := holds(100); at <= 4*9-1 || at > 4*9+1 {
		t.Errorf("given up after %v s, want four times 9", at)
	}
	if got := strings.Count(c.told.String(), "has held the lock of shard 1 for "); got != 3 {
		t.Errorf("the reason is given %d times, want 3:\n%s", got, c.told.String())
	}
}

// TestInquiry checks that a process's supervisor is asked whether the process is runnable before it is given up. A
// runnable process has three times as long. An answer about an earlier process of the same index is ignored.
func TestInquiry(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: 2, Shards: 2,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverResend, Every: 2},
	}, patience)
	c.core.SetSupervised(true)
	c.runHealthy(30)
	// silent lets ticks pass until the server is asked about or given up. It returns the number of ticks, and whether
	// it was asked about.
	silent := func() (ticks int, asked bool) {
		c.servers[1].silent = true
		count := func(what string) int { return strings.Count(c.told.String(), what+": server:1") }
		asks, kills := count("ask"), count("kill")
		for ticks = 1; ticks < 10*patience; ticks++ {
			c.report(Server, 0)
			c.report(Worker, 0)
			c.core.Tick()
			c.flush()
			if a, k := count("ask"), count("kill"); a > asks || k > kills {
				return ticks, a > asks
			}
		}
		t.Fatal("it is neither asked about nor given up")
		return 0, false
	}
	pid := c.servers[1].pid
	if _, asked := silent(); !asked {
		t.Fatal("it is given up without asking its supervisor")
	}
	answer := func(pid int, number int64, runs bool) { c.core.RecordAnswer(Inquiry{Server, 1, pid, number}, runs) }
	listener := &c.core.job.servers[1].liveness
	early := listener.AskedAt()
	answer(pid+1000, early, false)
	c.servers[1].silent = false
	c.runHealthy(5)
	first, asked := silent()
	if !asked {
		t.Fatal("after another sign of life it is given up without asking its supervisor again")
	}
	if answer(pid, early, false); listener.IsSuspect() {
		t.Fatal("suspected because of an answer about an earlier silence")
	}
	all := first
	for asked {
		if answer(pid, listener.AskedAt(), true); listener.IsSuspect() {
			t.Fatalf("suspected after %d ticks, although it is runnable", all)
		}
		var more int
		more, asked = silent()
		all += more
	}
	if all < 3*first || all > 3*first+6 {
		t.Errorf("given up after %d ticks, want three times %d", all, first)
	}

	c.runHealthy(30)
	if _, asked := silent(); !asked {
		t.Fatal("its replacement is given up without asking its supervisor")
	}
	c.core.record.View.Done = true
	if answer(c.servers[1].pid, listener.AskedAt(), false); listener.IsSuspect() {
		t.Error("suspected at the end of the job")
	}
	c.core.record.View.Done = false
	answer(c.servers[1].pid, listener.AskedAt(), false)
	if r := c.core.Ready(); len(r.Kills) != 1 {
		t.Errorf("it is reported as idle, but not given up at the same tick: %+v", r.Kills)
	}
}

// TestDeadlockedGuest checks that an unmanaged server, which cannot be killed, is disconnected and reconnects. Its
// earlier reports on locks are then ignored; new ones count.
func TestDeadlockedGuest(t *testing.T) {
	job := perdure.JobSpec{
		Slots: 1, Servers: 1, Shards: 1, Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery: perdure.Recovery{Kind: perdure.RecoverResend, Auto: true},
	}
	core := New(NewJobRecord(job, 1, 0, nil), patience, mutation.Set{})
	kills := func() int {
		core.Tick()
		return len(core.Ready().Kills)
	}
	held := protocol.ServerStatus{Hold: protocol.LockHold{Ms: 1000 * (maxHoldSeconds + 1)}}
	for round := range 2 {
		core.Join(Server, -1, Applicant{Process: "guest", Addr: "guest/1", PID: 7})
		if n := kills(); n != 0 {
			t.Fatalf("round %d: given up as deadlocked as soon as it is back", round)
		}
		core.ServerStatus(0, "guest", held)
		if n := kills(); n != 1 {
			t.Fatalf("round %d: %d to be killed, want the deadlocked one", round, n)
		}
	}
}
