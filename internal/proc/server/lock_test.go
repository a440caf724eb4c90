package server_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestBusyShard checks that a server with a busy shard reports in its heartbeats for how long, follows views with its
// other shards, admits clients and accepts orders. Afterwards the busy shard follows the newest view.
func TestBusyShard(t *testing.T) {
	const heartbeat = 5 * time.Millisecond
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	job := testcluster.Job("bsp", "none", 1, 1, 2)
	to, statuses := coordinate(ctx, h, &job)
	joined := make(chan server.Monitor, 1)
	h.StartServer("server:0", func(c *server.Config) {
		c.Heartbeat, c.Listen = heartbeat, "server:0/1"
		c.OnJoined = func(e server.Monitor, _ int) { joined <- e }
	})
	monitor, coordinator := <-joined, <-to

	v := protocol.View{
		Revision: 1, Generation: 1, Slots: []protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}},
		Shards: make([]protocol.ShardView, 2),
	}
	epoch := func(epochs ...perdure.Epoch) {
		v.Revision++
		v.Shards = append([]protocol.ShardView(nil), v.Shards...)
		for i, e := range epochs {
			v.Shards[i] = protocol.ShardView{
				Holder: protocol.Holder{Incarnation: 1, Addr: "server:0/1", Since: 2}, Epoch: e,
			}
		}
		must(t, coordinator.Send(wire.Control(wire.KindView, v)))
	}
	until := func(what string, fits func(st *protocol.ServerStatus) bool, epochs ...perdure.Epoch) {
		t.Helper()
		await(ctx, t, statuses, what, func(st *protocol.ServerStatus) bool {
			serves := func(sh protocol.ShardStatus, epoch perdure.Epoch) bool { return sh.Epoch == epoch && sh.Ready }
			return st.Revision == v.Revision && fits(st) && slices.EqualFunc(st.Shards, epochs, serves)
		})
	}
	any := func(*protocol.ServerStatus) bool { return true }
	epoch(1, 1)
	until("both shards start", any, 1, 1)

	release := monitor.Seize(0)
	epoch(2, 2)
	until("shard 1 follows", any, 1, 2)
	epoch(3, 3)
	until("shard 1 follows again", any, 1, 3)
	until("the hold is reported", func(st *protocol.ServerStatus) bool {
		return st.Hold.Shard == 0 && st.Hold.Ms >= 10*heartbeat.Milliseconds()
	}, 1, 3)
	c, err := transport.DialServer(ctx, h.Net.Host("worker:0"), "server:0/1",
		wire.Hello{Role: wire.RoleWorker, Job: job.ID, Incarnation: 1})
	must(t, err)
	defer c.Close()
	must(t, c.Send(wire.Frame{Header: wire.Header{
		Kind: wire.KindOpen, Generation: 1, Epoch: 3, Shard: 1, Incarnation: 1,
	}}))
	for f := (wire.Frame{}); f.Kind != wire.KindOpened; {
		must(t, c.Recv(&f))
	}
	must(t, coordinator.Send(wire.Control(wire.KindOrder, wire.DrainOrder(0))))
	until("the order to drain", func(st *protocol.ServerStatus) bool { return st.Draining }, 1, 3)

	release()
	until("shard 0 follows the newest view", func(st *protocol.ServerStatus) bool {
		return st.Hold.Ms == 0 && st.Hold.LongestMs >= 10*heartbeat.Milliseconds()
	}, 3, 3)
}

// TestStuckRetiredShard checks that a server also reports how long the lock of a retired shard is held. A goroutine
// that receives from a worker may wait for that lock forever, so the server must be replaced.
func TestStuckRetiredShard(t *testing.T) {
	const heartbeat = 5 * time.Millisecond
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	job := testcluster.Job("bsp", "none", 1, 1, 1)
	to, statuses := coordinate(ctx, h, &job)
	joined := make(chan server.Monitor, 1)
	h.StartServer("server:0", func(c *server.Config) {
		c.Heartbeat, c.Listen = heartbeat, "server:0/1"
		c.OnJoined = func(e server.Monitor, _ int) { joined <- e }
	})
	monitor, coordinator := <-joined, <-to
	generation := func(g perdure.Generation) {
		must(t, coordinator.Send(wire.Control(wire.KindView, protocol.View{
			Revision: uint64(g), Generation: g,
			Slots: []protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}},
			Shards: []protocol.ShardView{
				{Holder: protocol.Holder{Incarnation: 1, Addr: "server:0/1", Since: uint64(g)}, Epoch: 1},
			},
		})))
		await(ctx, t, statuses, "the shard starts", func(st *protocol.ServerStatus) bool {
			return len(st.Shards) == 1 && st.Shards[0].Generation == g && st.Shards[0].Ready
		})
	}
	generation(1)
	release := monitor.Seize(0)
	defer release()
	generation(2)
	first := int64(0)
	await(ctx, t, statuses, "the hold is reported, and grows", func(st *protocol.ServerStatus) bool {
		if first == 0 {
			first = st.Hold.Ms
		}
		return st.Hold.Shard == 0 && st.Hold.Ms >= first+10*heartbeat.Milliseconds()
	})
}

// TestLateOpen checks that a delayed Open is ignored once its connection has ended or has opened the same epoch again.
func TestLateOpen(t *testing.T) {
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	job := testcluster.Job("bsp", "none", 1, 1, 1)
	to, statuses := coordinate(ctx, h, &job)
	joined := make(chan server.Monitor, 1)
	h.StartServer("server:0", func(c *server.Config) {
		c.Listen, c.OnJoined = "server:0/1", func(e server.Monitor, _ int) { joined <- e }
	})
	monitor, coordinator := <-joined, <-to
	epoch := func(n perdure.Epoch) {
		must(t, coordinator.Send(wire.Control(wire.KindView, protocol.View{
			Revision: uint64(n), Generation: 1,
			Slots: []protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}},
			Shards: []protocol.ShardView{
				{Holder: protocol.Holder{Incarnation: 1, Addr: "server:0/1", Since: 1}, Epoch: n},
			},
		})))
		await(ctx, t, statuses, "the shard serves", func(st *protocol.ServerStatus) bool {
			return len(st.Shards) == 1 && st.Shards[0].Epoch == n && st.Shards[0].Ready
		})
	}
	// opened returns how many Opens were answered when the server has read all frames sent before.
	opened := func(c transport.Conn) (n int) {
		must(t, c.Send(wire.Frame{Header: wire.Header{Kind: wire.KindEcho, Shard: -1}}))
		for f := (wire.Frame{}); f.Kind != wire.KindEcho; {
			if must(t, c.Recv(&f)); f.Kind == wire.KindOpened {
				n++
			}
		}
		return n
	}
	open := func(n perdure.Epoch) wire.Frame {
		return wire.Frame{Header: wire.Header{Kind: wire.KindOpen, Generation: 1, Epoch: n, Incarnation: 1}}
	}
	late := func(n perdure.Epoch) (c transport.Conn, bring func()) {
		c, err := transport.DialServer(ctx, h.Net.Host("worker:0"), "server:0/1",
			wire.Hello{Role: wire.RoleWorker, Job: job.ID, Incarnation: 1})
		must(t, err)
		must(t, c.Send(open(n)))
		if got := opened(c); got != 0 {
			t.Fatal("the shard was opened before its epoch started")
		}
		bring, opens := monitor.Delay(0)
		if epoch(n); opens != 1 {
			t.Fatalf("%d Opens wait, want 1", opens)
		}
		return c, bring
	}
	epoch(1)

	c, bring := late(2)
	must(t, c.Send(open(2)))
	n := opened(c)
	bring()
	if n += opened(c); n != 1 {
		t.Errorf("two Opens of one epoch were answered %d times, want once", n)
	}
	c.Close()

	c, bring = late(3)
	c.Close()
	for monitor.Stats().Connections > 0 {
		if ctx.Err() != nil {
			t.Fatal("the server does not notice that a connection has ended")
		}
	}
	if bring(); monitor.Reads(0, 0) {
		t.Error("a slot reads on a connection that has ended")
	}
}

// TestFillLate checks that a shard whose rows belong to an older view than the newest one follows only the newest.
func TestFillLate(t *testing.T) {
	ctx, h := testcluster.NewForTest(t, time.Minute, testcluster.Options{Ended: func(*testcluster.Process, error) {}})
	job := testcluster.Job("bsp", "none", 1, 1, 1)
	to, statuses := coordinate(ctx, h, &job)
	joined := make(chan server.Monitor, 1)
	h.StartServer("server:0", func(c *server.Config) {
		c.Listen, c.OnJoined = "server:0/1", func(e server.Monitor, _ int) { joined <- e }
	})
	monitor, coordinator := <-joined, <-to
	view := func(revision uint64) protocol.View {
		return protocol.View{
			Revision: revision, Generation: 1,
			Slots: []protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}},
			Shards: []protocol.ShardView{
				{Holder: protocol.Holder{Incarnation: 1, Addr: "server:0/1", Since: 1}, Epoch: perdure.Epoch(revision)},
			},
		}
	}
	for revision := uint64(1); revision <= 2; revision++ {
		must(t, coordinator.Send(wire.Control(wire.KindView, view(revision))))
		await(ctx, t, statuses, "the shard serves", func(st *protocol.ServerStatus) bool {
			return len(st.Shards) == 1 && st.Shards[0].Epoch == perdure.Epoch(revision) && st.Shards[0].Ready
		})
	}
	if follows := monitor.Fill(0, view(1)); follows != 2 {
		t.Errorf("a shard with late rows follows view %d, want 2", follows)
	}
}

// await waits for a status that matches.
func await(ctx context.Context, t *testing.T, from <-chan protocol.ServerStatus, what string,
	fits func(st *protocol.ServerStatus) bool,
) {
	t.Helper()
	for st := (protocol.ServerStatus{}); ; {
		select {
		case st = <-from:
		case <-ctx.Done():
			t.Fatalf("%s: the last status is %+v", what, st)
		}
		if fits(&st) {
			return
		}
	}
}

// coordinate accepts servers into a job, and returns the connection of the first one and its statuses.
func coordinate(ctx context.Context, h *testcluster.Hosts, job *perdure.JobSpec) (
	<-chan transport.Conn, <-chan protocol.ServerStatus,
) {
	to, statuses := make(chan transport.Conn, 1), make(chan protocol.ServerStatus)
	h.Listen(testcluster.CoordinatorAddr, func(c transport.Conn, hello wire.Hello) {
		_ = c.Send(wire.Control(wire.KindWelcome, wire.Welcome{Job: *job, Index: hello.Index, Incarnation: 1}))
		to <- c
		var word protocol.ObservedServer
		for {
			var f wire.Frame
			var d protocol.ServerDelta
			if c.Recv(&f) != nil {
				return
			}
			if f.Kind != wire.KindStatus || wire.ParseControl(&f, &d) != nil {
				continue
			}
			word.Apply(&d, func(perdure.ShardID, *protocol.ObservedShard, *protocol.ShardDelta) {})
			select {
			case statuses <- word.Status():
			case <-ctx.Done():
				return
			}
		}
	})
	return to, statuses
}
