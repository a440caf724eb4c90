package membership

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

const patience = 15 // ticks: 1.5 s with a tick every 100 ms

// A server that is heard at every tick is suspected after 10 silent ones, and one
// that comes back holds nothing.
func TestFrozenServer(t *testing.T) {
	c := newCluster(perdure.JobSpec{
		Slots: 1, Servers: 2, Shards: 1,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2},
	}, patience)
	c.wellness(30)
	c.process(Server, 1).silent = true
	silent := 0
	for !c.core.job.servers[1].ear.Suspect() {
		if silent++; silent > patience {
			t.Fatal("not suspected")
		}
		c.report(Server, 0)
		c.report(Worker, 0)
		c.core.Tick()
	}
	if silent != 4 { // and the one before which it was last heard
		t.Errorf("suspected after %d silent ticks, want 4", silent)
	}
	r := c.core.Ready() // nobody is there to kill it
	if n := r.Facts.View.Shards[0].Replicas(); n != 1 || len(r.Kills) != 1 {
		t.Fatalf("%d replicas, %d to be killed", n, len(r.Kills))
	}
	c.saved = r.Facts.Clone()
	c.process(Server, 1).silent = false
	c.report(Server, 1)
	sv := &c.saved.View.Shards[0]
	if sv.Replicas() != 1 || sv.Joining == nil || sv.Joining.Server != 1 || sv.Joining.Since != c.saved.View.Revision {
		t.Fatalf("it comes back to %+v in revision %d", *sv, c.saved.View.Revision)
	}

	// What it says of its former replica does not make it a member.
	said := words.ShardStatus{
		Shard: 0, Generation: 1, Epoch: sv.Epoch, Since: sv.Joining.Since - 1, Ready: true,
		Joined: true,
	}
	c.core.ServerStatus(1, c.servers[1].name, words.ServerStatus{Shards: []words.ShardStatus{said}})
	if n := c.core.Facts().View.Shards[0].Replicas(); n != 1 {
		t.Fatalf("%d replicas by the word of another one", n)
	}
	said.Since++
	c.core.ServerStatus(1, c.servers[1].name, words.ServerStatus{Shards: []words.ShardStatus{said}})
	if n := c.core.Facts().View.Shards[0].Replicas(); n != 2 {
		t.Fatalf("%d replicas, though it has joined", n)
	}
}
