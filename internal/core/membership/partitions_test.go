package membership

import (
	"slices"
	"strings"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// partitionedJob returns a job of two workers and three servers, with each shard on two servers.
func partitionedJob(t *testing.T) (c *cluster, says func(unreached ...string) []Event) {
	t.Helper()
	c = newCluster(perdure.JobSpec{
		Slots: 2, Servers: 3, Shards: 3,
		Consistency: perdure.Consistency{Kind: perdure.BSP},
		Recovery:    perdure.Recovery{Kind: perdure.RecoverChain, Replicas: 2},
	}, patience)
	c.runHealthy(30)
	c.core.Ready()
	return c, func(unreached ...string) []Event { // a tick; worker 0 reports unreachable servers
		for i := range c.servers {
			c.report(Server, i)
		}
		c.report(Worker, 1)
		st := protocol.WorkerStatus{Generation: 1, Unreachable: unreached}
		c.core.HandleWorkerStatus(0, c.workers[0].name, st)
		c.core.Tick()
		r := c.core.Ready()
		if r.Record != nil {
			c.saved = r.Record.Clone()
		}
		return r.Events
	}
}

// kinds returns the given kinds of events with their targets.
func kinds(all []Event, which ...string) (list []string) {
	for _, e := range all {
		if slices.Contains(which, e.Kind) {
			list = append(list, e.Kind+" "+e.Target)
		}
	}
	return list
}

// TestRift checks that a server which a worker has not reached for two patiences counts as silent, although it sends:
// its replicas are dropped. Once it can be reached, it counts again and gets new replicas.
func TestRift(t *testing.T) {
	c, says := partitionedJob(t)
	at := c.core.Record().Servers[1].Addr
	var sent []string
	ticks := 0
	for ; len(sent) < 2 && ticks < 100; ticks++ {
		sent = append(sent, kinds(says(at), "unreached", "reached", "suspected")...)
	}
	if want := []string{"unreached server:1", "suspected server:1"}; !slices.Equal(sent, want) || ticks < 2*patience ||
		ticks > 4*patience {
		t.Fatalf("after %d ticks: %v, want %v", ticks, sent, want)
	}
	for i := range c.core.Record().View.Shards {
		sv := &c.core.Record().View.Shards[i]
		if sv.Server == 1 || slices.ContainsFunc(sv.Followers, func(h protocol.Holder) bool { return h.Server == 1 }) {
			t.Fatalf("shard %d still has a replica on server 1: %+v", i, *sv)
		}
	}
	if !c.core.partitions.IsExcluded(at) || c.core.partitions.IsExcluded(c.core.Record().Servers[0].Addr) {
		t.Error("a server at the excluded address can join, or one at another address cannot")
	}
	for range 100 {
		if more := kinds(says(at), "unreached", "reached", "suspected"); len(more) > 0 {
			t.Fatalf("reported again: %v", more)
		}
	}
	if sent := kinds(says(), "reached"); !slices.Equal(sent, []string{"reached server:1"}) ||
		c.core.partitions.IsExcluded(at) {
		t.Fatalf("when it can be reached again: %v", sent)
	}
	for range 3 {
		says()
	}
	if c.core.job.servers[1].liveness.IsSuspect() {
		t.Error("it still counts as silent")
	}
}

// TestShortRift checks that complaints of less than two patiences change nothing, because a process that was cut off
// from everything makes them for a moment.
func TestShortRift(t *testing.T) {
	c, says := partitionedJob(t)
	at := c.core.Record().Servers[1].Addr
	for n := range 20 * patience {
		var unreached []string
		if n%(2*patience) != 0 {
			unreached = []string{at, "nobody's"}
		}
		if sent := kinds(says(unreached...), "unreached", "suspected"); len(sent) > 0 {
			t.Fatalf("tick %d: %v", n, sent)
		}
	}
}

// TestWorkerCutOff checks that a worker that reaches none of three servers is considered cut off itself: users are
// notified, and no server is excluded.
func TestWorkerCutOff(t *testing.T) {
	c, says := partitionedJob(t)
	var all []string
	for _, p := range c.core.Record().Servers {
		all = append(all, p.Addr)
	}
	var sent []Event
	for range 10 * patience {
		sent = append(sent, says(all...)...)
	}
	if len(kinds(sent, "suspected")) > 0 || len(kinds(sent, "unreached")) != 1 {
		t.Fatalf("told %+v", sent)
	}
	i := slices.IndexFunc(sent, func(e Event) bool { return e.Kind == "unreached" })
	if e := sent[i]; e.Target != "worker:0" || !strings.Contains(e.Text, "server:0, server:1 and server:2") {
		t.Errorf("told %+v", e)
	}
	if c.core.partitions.IsExcluded(all[0]) {
		t.Error("a server cannot join")
	}
}
