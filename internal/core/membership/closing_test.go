package membership

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestClosesAtTheEnd checks that a job whose end is durable is closed by that, even if a slot pauses beyond the end,
// where it would have started to participate. No other cut is requested, because none is possible.
func TestClosesAtTheEnd(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 2, Servers: 1, Shards: 1, Recovery: perdure.Recovery{Kind: perdure.RecoverCheckpoint, Every: 2},
		Consistency: perdure.Consistency{Kind: perdure.BSP},
	}, patience)
	c.runHealthy(3)
	v := &c.core.record.View
	v.End, v.Durable, v.Named, c.core.record.Final = 3, 3, 0, &FinalCheckpoint{}
	c.core.cuts.nameCut(4)
	if last := c.core.record.Final; !last.Named || last.Cut != 3 || v.Named != 0 || c.core.record.AwaitsFinal() {
		t.Errorf("the last cut is %+v, and cut %d is requested", *last, v.Named)
	}
}

// TestLastCut checks that an ending job is saved at the highest clock that any slot has reached. That includes slots
// whose process has died and of whose clocks some shards have more. The coordinator may die in the meantime.
func TestLastCut(t *testing.T) {
	for _, recovery := range []perdure.Recovery{
		{Kind: perdure.RecoverCheckpoint, Every: 100},
		{Kind: perdure.RecoverCheckpoint, Every: 100, Async: true},
		{Kind: perdure.RecoverCheckpoint, Auto: true},
		{Kind: perdure.RecoverResend, Every: 100},
		{Kind: perdure.RecoverResend, Auto: true},
		{Kind: perdure.RecoverChain, Replicas: 2, Every: 100, Checkpoints: true},
	} {
		for _, model := range []perdure.Consistency{{Kind: perdure.BSP}, {Kind: perdure.SSP, Staleness: 3}} {
			c := newCluster(perdure.JobSpec{Slots: 2, Servers: 2, Shards: 2, Recovery: recovery, Consistency: model},
				15)
			for range 100 {
				if c.core.MinClock() > 2 {
					break
				}
				c.runHealthy(1)
			}
			before := c.core.MinClock()
			for range 6 { // slot 0 is ahead, on one shard
				c.work(0)
				c.send(0, 0)
			}
			c.each(func(k Kind, index int, _ *fakeProcess) { c.follow(k, index); c.report(k, index) })
			c.kill(Worker, 0, "gone")
			c.core.RequestFinalCheckpoint()
			c.flush()
			if c.core.FinalCheckpointDone() {
				t.Errorf("%s, %s: closed immediately", recovery, model)
			}
			c.restart()
			c.runHealthy(12)
			last := c.saved.Final
			if c.wrong != nil || !c.core.FinalCheckpointDone() || last == nil || last.Cut <= before ||
				c.saved.View.Durable < last.Cut {
				t.Errorf("%s, %s: %v; the last cut is %+v, from clock %d on, durable %d", recovery, model, c.wrong,
					last, before, c.saved.View.Durable)
			}
			c.core.RequestFinalCheckpoint()
			if c.flush(); c.saved.Final != last {
				t.Errorf("%s, %s: asked again, another last cut", recovery, model)
			}
		}
	}
}

// TestNothingToSave checks that no checkpoint is requested if there is no progress since the newest one, or if the job
// keeps none.
func TestNothingToSave(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 2, Servers: 2, Shards: 2,
		Recovery: perdure.Recovery{Kind: perdure.RecoverResend, Auto: true},
	}, 15)
	c.core.RequestFinalCheckpoint()
	if !c.core.FinalCheckpointDone() {
		t.Error("a job that has not started is not closed")
	}
	c = newCluster(perdure.JobSpec{
		Slots: 2, Servers: 2, Shards: 2,
		Recovery: perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2},
	}, 15)
	c.runHealthy(2)
	c.core.RequestFinalCheckpoint()
	if c.flush(); c.saved.Final != nil || c.core.FinalCheckpointDone() {
		t.Error("a job without checkpoints makes one")
	}
}

// rowsJob returns the core of an ending job whose only shard saves its rows separately, and the shard's status.
func rowsJob(t *testing.T) (*Core, *protocol.ShardStatus) {
	t.Helper()
	how, err := perdure.ParseRecovery("scar:4,1/2,round")
	if err != nil {
		t.Fatal(err)
	}
	job := perdure.JobSpec{ID: "j", Slots: 1, Servers: 1, Shards: 1, Clocks: 100, Recovery: how}
	f := NewJobRecord(job, 1, 0, nil)
	f.Servers[0].Incarnation = 1
	sv := &f.View.Shards[0]
	sv.Server, sv.Incarnation, sv.Epoch = 0, 1, 1
	f.View.Named, f.Final = 7, &FinalCheckpoint{Named: true, Cut: 7}
	core := New(f, 10, mutation.Set{})
	st := &protocol.ObservedShard{ShardStatus: protocol.ShardStatus{Epoch: 1, Generation: 1, Ready: true}}
	core.job.servers[0].server = &protocol.ObservedServer{Shards: map[perdure.ShardID]*protocol.ObservedShard{0: st}}
	return core, &st.ShardStatus
}

// TestLastRows checks that, where rows are saved separately, the last manifest contains only files of the named clock,
// from shards that know the name. Otherwise one may contain some rows only.
func TestLastRows(t *testing.T) {
	for _, c := range []struct {
		named, cut perdure.Clock
		last       bool
	}{{0, 7, false}, {7, 6, false}, {5, 7, false}, {7, 8, false}, {7, 7, true}} {
		core, st := rowsJob(t)
		st.Cuts.Named, st.Segments = c.named, []protocol.Segment{{Cut: c.cut, File: "f"}}
		core.rounds.recordSaves()
		if p := core.rec.pending.Publish; p == nil || p.Last != c.last {
			t.Errorf("a shard that knows clock %d and has saved %d publishes %+v; the last one: %t",
				c.named, c.cut, p, c.last)
		}
	}
}

// TestPublishedRows checks that the job record distinguishes saved rows from the newest manifest that was written. The
// latter alone causes no save of the record: the next save includes it.
func TestPublishedRows(t *testing.T) {
	core, st := rowsJob(t)
	st.Cuts.Named = 7
	core.reconcile()
	var saved RunningCheckpoint
	flush := func() *Publish {
		r := core.Ready()
		if r.Record != nil {
			saved = r.Record.Clone().Running
		}
		return r.Publish
	}
	flush()
	for i, c := range []struct {
		cut                      perdure.Clock
		written                  bool
		before, after, published uint64 // numbers in the saved record: before and after the manifest is written
	}{{4, true, 0, 0, 1}, {5, false, 1, 1, 1}, {6, true, 1, 1, 3}, {7, true, 3, 4, 4}} {
		st.Segments = []protocol.Segment{{Cut: c.cut, File: fmt.Sprint(i)}}
		core.rounds.recordSaves()
		p := flush()
		if p == nil || saved.Number != uint64(i+1) || saved.Published != c.before {
			t.Fatalf("clock %d: saved number %d, published %d; want %d and %d", c.cut, saved.Number, saved.Published,
				i+1, c.before)
		}
		counts := core.Published(p, c.written)
		if flush(); counts != p.Last || saved.Published != c.after || core.Record().Running.Published != c.published {
			t.Errorf("clock %d: counts %t; published %d, saved %d; want %d and %d", c.cut, counts,
				core.Record().Running.Published, saved.Published, c.published, c.after)
		}
	}
	if at := core.Record().View.Durable; at != 7 {
		t.Errorf("clock %d is durable", at)
	}
}

// TestCompleteAfterManifest checks that a job completes only after the manifest of all rows that its shards had saved
// then, or after the store has rejected it. The end of the job may kill the coordinator while it writes a later one.
func TestCompleteAfterManifest(t *testing.T) {
	core, st := rowsJob(t)
	core.record.View.Named, core.record.Final, core.record.View.End = 0, nil, 10
	publish := func(when string) *Publish {
		t.Helper()
		p := core.Ready().Publish
		if p == nil || core.Complete() {
			t.Fatalf("%s: publishes %+v, complete %t", when, p, core.Complete())
		}
		return p
	}
	st.MinClock, st.Segments = 9, []protocol.Segment{{Cut: 8, File: "a"}}
	core.Tick()
	p := publish("before the end")
	st.MinClock, st.Segments = 10, []protocol.Segment{{Cut: 9, File: "b"}}
	core.job.slots[0].worker = &protocol.WorkerStatus{Generation: 1, Clock: 10, Finished: true}
	core.Tick()
	core.Published(p, true)
	p = publish("at the end")
	core.Published(p, false)
	if p = core.Ready().Publish; p != nil || !core.Complete() {
		t.Errorf("after the last manifest: publishes %+v, complete %t", p, core.Complete())
	}
	st.Segments[0].File = "c"
	core.Tick()
	if p = core.Ready().Publish; p == nil || !core.Complete() {
		t.Errorf("later: publishes %+v, complete %t", p, core.Complete())
	}
}
