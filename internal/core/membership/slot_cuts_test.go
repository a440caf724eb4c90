package membership

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// slotCutJob returns the core of a job with atomic clocks, two settled slots and two shards that serve, and the shards'
// statuses.
func slotCutJob() (*Core, []*protocol.ObservedShard) {
	job := perdure.JobSpec{
		ID: "j", Slots: 2, Servers: 1, Shards: 2, Clocks: 100, AtomicClocks: true,
		Consistency: perdure.Consistency{Kind: perdure.ASP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 10},
	}
	f := NewJobRecord(job, 1, 0, nil)
	f.Servers[0] = Member{Process: "server:0", Incarnation: 1}
	all := map[perdure.ShardID]*protocol.ObservedShard{}
	var statuses []*protocol.ObservedShard
	for i := range f.View.Shards {
		sv := &f.View.Shards[i]
		sv.Server, sv.Incarnation, sv.Epoch = 0, 1, 1
		st := &protocol.ObservedShard{ShardStatus: protocol.ShardStatus{Epoch: 1, Generation: 1, Ready: true}}
		all[perdure.ShardID(i)], statuses = st, append(statuses, st)
	}
	for i := range f.View.Slots {
		f.View.Slots[i] = protocol.SlotView{Incarnation: 1, Decided: true, Settled: true}
	}
	core := New(f, 10, mutation.Set{})
	core.job.servers[0].connected, core.job.servers[0].server = true, &protocol.ObservedServer{Shards: all}
	for i := range all {
		core.queue.TouchShard(int(i))
	}
	core.rec.refresh()
	return core, statuses
}

// hold makes the shards report the current hold, with these ticked counts.
func hold(c *Core, shards []*protocol.ObservedShard, ticked ...[]perdure.Clock) {
	for i := range ticked {
		shards[i].Cuts.Hold, shards[i].Cuts.Ticked = c.record.View.Hold, ticked[i]
	}
}

// TestCutBySlot follows a cut by slot from the request to the checkpoint, and the rollback to it.
func TestCutBySlot(t *testing.T) {
	c, shards := slotCutJob()
	v := &c.record.View
	c.job.slots[0].lastClock, c.job.slots[1].lastClock = 16, 2
	if c.cuts.requestTimed(); c.record.CutRequested {
		t.Fatal("a cut is requested at a mean clock of 9")
	}
	c.job.slots[0].lastClock = 18
	c.cuts.requestTimed()
	c.cuts.cutBySlot()
	if v.Hold == 0 {
		t.Fatal("no hold was started at a mean clock of 10")
	}
	hold(c, shards, []perdure.Clock{18, 2})
	if c.cuts.cutBySlot(); v.Named != 0 {
		t.Fatal("a cut was named before all shards were in the hold")
	}
	hold(c, shards, []perdure.Clock{18, 2}, []perdure.Clock{17, 3})
	c.cuts.cutBySlot()
	if want := (protocol.SlotClocks{18, 3}); v.Hold != 0 || v.Named != 10 || !slices.Equal(v.NamedClocks, want) {
		t.Fatalf("hold %d, cut %d at %v is named; want no hold, and cut 10 at %v", v.Hold, v.Named, v.NamedClocks, want)
	}
	for i := range shards {
		shards[i].Cuts = protocol.CutStatus{Named: 10}
		shards[i].Segments = []protocol.Segment{{Cut: 10, File: "f"}}
	}
	c.cuts.collectCut()
	c.Published(c.rec.pending.Publish, true)
	c.rollBack("a test")
	for i, want := range []perdure.Clock{18, 3} {
		if got := v.Slots[i].Start; got != want || v.Saved(perdure.Slot(i)) != want {
			t.Errorf("slot %d starts at clock %d, saved below %d; want %d", i, got, v.Saved(perdure.Slot(i)), want)
		}
	}
}

// TestHoldGivenUp checks that a hold ends without a cut if a shard is lost or silent, and when the next one may start.
func TestHoldGivenUp(t *testing.T) {
	for name, harm := range map[string]func(*Core){
		"a shard is lost":         func(c *Core) { c.queue.LostShards.Add(1) },
		"a slot has lost a clock": func(c *Core) { c.record.View.Slots[1].Settled = false },
		"a shard is silent":       func(c *Core) { c.job.tick += 21 },
		"the membership changes":  func(c *Core) { c.record.View.Roster = 1 },
	} {
		c, shards := slotCutJob()
		c.record.CutRequested = true
		c.cuts.cutBySlot()
		hold(c, shards, []perdure.Clock{5, 5})
		started := c.job.tick
		harm(c)
		if c.cuts.cutBySlot(); c.record.View.Hold != 0 || c.record.View.Named != 0 || !c.record.CutRequested {
			t.Errorf("%s: hold %d, cut %d", name, c.record.View.Hold, c.record.View.Named)
		}
		if took := c.job.tick - started; c.cuts.holdFrom != c.job.tick+1+holdPause*took {
			t.Errorf("%s: the next hold starts at tick %d, after one from %d to %d", name, c.cuts.holdFrom, started,
				c.job.tick)
		}
	}
}

// TestMissedSlotCut checks that the next cut waits until no shard writes the missed one any more.
func TestMissedSlotCut(t *testing.T) {
	c, shards := slotCutJob()
	c.record.View.Named, c.record.View.NamedClocks = 4, protocol.SlotClocks{4, 4}
	shards[0].Cuts = protocol.CutStatus{Named: 4, Missed: true}
	shards[1].Cuts = protocol.CutStatus{Named: 4}
	if c.cuts.mayHold() {
		t.Error("a hold may start while a shard writes the missed cut")
	}
	shards[1].Segments = []protocol.Segment{{Cut: 4}}
	if !c.cuts.mayHold() {
		t.Error("no hold may start although no shard writes")
	}
}
