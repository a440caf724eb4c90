package membership

import (
	"testing"

	"github.com/perdure/perdure"
)

// TestLastCut: a job that is to end is saved at the highest clock that any slot has come
// to, also one whose process is dead, and of whose clocks some shards have more; the
// coordinator may die meanwhile.
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
				c.wellness(1)
			}
			before := c.core.MinClock()
			for range 6 { // slot 0 is ahead, on one shard
				c.work(0)
				c.send(0, 0)
			}
			c.each(func(k Kind, index int, _ *fakeProcess) { c.follow(k, index); c.report(k, index) })
			c.kill(Worker, 0, "gone")
			c.core.Close()
			c.flush()
			if c.core.Closed() {
				t.Errorf("%s, %s: closed at once", recovery, model)
			}
			c.restart()
			c.wellness(12)
			last := c.saved.Closing
			if c.wrong != nil || !c.core.Closed() || last == nil || last.Cut <= before ||
				c.saved.View.Durable < last.Cut {
				t.Errorf("%s, %s: %v; the last cut is %+v, from clock %d on, durable %d", recovery, model, c.wrong,
					last, before, c.saved.View.Durable)
			}
			c.core.Close()
			if c.flush(); c.saved.Closing != last {
				t.Errorf("%s, %s: asked again, another last cut", recovery, model)
			}
		}
	}
}

// TestNothingToSave: a job that has done nothing since its newest checkpoint, and one that
// keeps none, are not asked for more.
func TestNothingToSave(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 2, Servers: 2, Shards: 2,
		Recovery: perdure.Recovery{Kind: perdure.RecoverResend, Auto: true},
	}, 15)
	c.core.Close()
	if !c.core.Closed() {
		t.Error("a job that has not begun is waited for")
	}
	c = newCluster(perdure.JobSpec{
		Slots: 2, Servers: 2, Shards: 2,
		Recovery: perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2},
	}, 15)
	c.wellness(2)
	c.core.Close()
	if c.flush(); c.saved.Closing != nil || c.core.Closed() {
		t.Error("a job without checkpoints makes one")
	}
}
