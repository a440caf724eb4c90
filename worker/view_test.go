package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// puppet is a coordinator for a single peer. The test determines its messages.
type puppet struct {
	*testing.T
	listener transport.Listener
	conn     transport.Conn
}

// welcome accepts the peer's next connection and sends the complete view.
func (c *puppet) welcome(v protocol.View) {
	c.Helper()
	var err error
	if c.conn, err = c.listener.Accept(); err != nil {
		c.Fatal(err)
	}
	if _, err := transport.ReceiveHello(c.conn, time.Minute, wire.Keys{}); err != nil {
		c.Fatal(err)
	}
	welcome := wire.Welcome{Job: testcluster.Job("asp", "none", 1, 1, 1), Incarnation: 1}
	welcome.Job.Clocks = v.End
	c.tell(wire.Control(wire.KindWelcome, welcome), wire.Control(wire.KindView, v))
}

func (c *puppet) tell(frames ...wire.Frame) {
	c.Helper()
	if err := c.conn.Send(frames...); err != nil {
		c.Fatal(err)
	}
}

// follows waits until the peer acts on the view of a revision. The peer must never act on a later one.
func (c *puppet) follows(revision uint64) {
	c.Helper()
	for {
		var f wire.Frame
		if err := c.conn.Recv(&f); err != nil {
			c.Fatalf("waiting for revision %d: %v", revision, err)
		}
		var server protocol.ServerDelta
		var worker protocol.WorkerDelta
		var err error
		switch f.Kind {
		case wire.KindStatus:
			err = wire.ParseControl(&f, &server)
		case wire.KindWorkerStatus:
			err = wire.ParseControl(&f, &worker)
		default:
			err = wire.ErrPayload
		}
		if err != nil {
			c.Fatalf("a frame of kind %d: %v", f.Kind, err)
		}
		at := max(server.Revision, worker.Revision)
		if at > revision {
			c.Fatalf("it acts on revision %d, told of %d at most", at, revision)
		}
		if at == revision {
			return
		}
	}
}

// TestViewDeltas checks that servers and workers apply view deltas as if they had received the complete view. Repeated
// deltas have no effect. A client that has missed a delta reconnects to get the complete view.
func TestViewDeltas(t *testing.T) {
	for host, run := range map[string]func(ctx context.Context, p *testcluster.Process) error{
		"server:0": func(ctx context.Context, p *testcluster.Process) error { return p.RunServer(ctx) },
		"worker:0": func(ctx context.Context, p *testcluster.Process) error {
			_, err := p.Dial(ctx, 0) // it does not return, because no shard is placed
			return err
		},
	} {
		t.Run(host, func(t *testing.T) {
			testcluster.RunVirtual(t, time.Minute, hosts(transport.MemoryOptions{}),
				func(t *testing.T, _ context.Context, h *testcluster.Hosts) {
					viewDeltas(t, h, func() { h.Start(host, run) })
				})
		})
	}
}

func viewDeltas(t *testing.T, h *testcluster.Hosts, start func()) {
	l, err := h.Net.Host(testcluster.CoordinatorHost).Listen(coordinatorAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	start()
	view := func(revision uint64) protocol.View {
		return protocol.View{
			Revision: revision, Generation: 1, Shards: []protocol.ShardView{{Holder: protocol.Holder{Server: -1}}},
			Slots: []protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true}},
		}
	}
	delta := func(base uint64) wire.Frame {
		newer := view(base + 1)
		newer.Slots[0].Start = 1
		return wire.Control(wire.KindViewDelta, protocol.DeltaOf(&newer, base, false, nil, []perdure.Slot{0}))
	}
	c := &puppet{T: t, listener: l}
	c.welcome(view(4))
	c.follows(4)
	c.tell(delta(4), delta(4), delta(5), delta(4), delta(5))
	c.follows(6)
	c.tell(delta(7)) // the delta for revision 6 is lost
	for n := 0; err == nil; n++ {
		var f wire.Frame
		if err = c.conn.Recv(&f); n == 100 {
			t.Fatal("it goes on as if it had missed nothing")
		}
	}
	c.welcome(view(8))
	c.follows(8)
	c.tell(delta(8))
	c.follows(9)
	c.tell(wire.Control(wire.KindViewDelta,
		protocol.ViewDelta{Base: 9, Revision: 10, Shards: []protocol.ShardChange{{Shard: 1}}}))
	c.welcome(view(10)) // the peer has reconnected
	c.follows(10)
}

// TestLeftStays checks that a process that was notified that its slot has left ends gracefully, even if the slot
// belongs to another process by then. A process whose slot was reassigned without leaving does not.
func TestLeftStays(t *testing.T) {
	for _, left := range []bool{true, false} {
		testcluster.RunVirtual(t, time.Minute, hosts(transport.MemoryOptions{}),
			func(t *testing.T, ctx context.Context, h *testcluster.Hosts) { leftStays(ctx, t, h, left) })
	}
}

func leftStays(ctx context.Context, t *testing.T, h *testcluster.Hosts, left bool) {
	l, err := h.Net.Host(testcluster.CoordinatorHost).Listen(coordinatorAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	dialed, sent, ended := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	h.Start("worker:0", func(ctx context.Context, p *testcluster.Process) error {
		w, err := p.Dial(ctx, 0)
		if err != nil {
			return err
		}
		defer w.Close()
		close(dialed)
		<-sent
		within, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		err = w.Finish(within)
		if at, is := w.Left(); is != left || is && at != 3 {
			t.Errorf("it has left: %v, at clock %d; want %v, at 3", is, at, left)
		}
		ended <- err
		<-ctx.Done()
		return ctx.Err()
	})
	v := protocol.View{
		Revision: 4, Generation: 1, Roster: 1,
		Shards: []protocol.ShardView{{Holder: protocol.Holder{Server: 0, Incarnation: 1, Addr: "gone:1"}, Epoch: 1}},
		Slots: []protocol.SlotView{
			{Incarnation: 1, Decided: true, Settled: true, Start: 3, Interval: protocol.Interval{Until: 3}},
			{Incarnation: 1, Decided: true, Settled: true},
		},
	}
	c := &puppet{T: t, listener: l}
	c.welcome(v)
	<-dialed
	v.Slots[0].Left = left
	for range 2 {
		v.Revision++
		c.tell(wire.Control(wire.KindViewDelta, protocol.DeltaOf(&v, v.Revision-1, false, nil, []perdure.Slot{0})))
		v.Slots[0] = protocol.SlotView{Incarnation: 2, Interval: protocol.Interval{From: 5}}
	}
	c.follows(v.Revision)
	close(sent)
	if err := <-ended; (err == nil) != left {
		t.Errorf("it was told that it has left: %v; it ends with %v", left, err)
	}
}

// TestEndStays checks that a request to end the job, in a job that keeps its planned end, is answered only by the end
// of a pause that began after the request, and on the same connection.
func TestEndStays(t *testing.T) {
	testcluster.RunVirtual(t, time.Minute, hosts(transport.MemoryOptions{}), endStays)
}

func endStays(t *testing.T, _ context.Context, h *testcluster.Hosts) {
	l, err := h.Net.Host(testcluster.CoordinatorHost).Listen(coordinatorAddr)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	asks, ended := make(chan struct{}), make(chan error, 1)
	h.Start("worker:0", func(ctx context.Context, p *testcluster.Process) error {
		w, err := p.Dial(ctx, 0)
		if err != nil {
			return err
		}
		defer w.Close()
		close(asks)
		ended <- w.EndJob(ctx)
		<-ctx.Done()
		return ctx.Err()
	})
	v := protocol.View{
		Revision: 4, Generation: 1, End: 9, Pause: true,
		Shards: []protocol.ShardView{{Holder: protocol.Holder{Server: 0, Incarnation: 1, Addr: "gone:1"}, Epoch: 1}},
		Slots:  []protocol.SlotView{{Incarnation: 1, Decided: true, Settled: true, Start: 3}},
	}
	c := &puppet{T: t, listener: l}
	c.welcome(v)
	<-asks
	tell := func(pause, answers bool) {
		t.Helper()
		<-time.After(time.Second)
		v.Revision++
		v.Pause = pause
		c.tell(wire.Control(wire.KindViewDelta, protocol.DeltaOf(&v, v.Revision-1, false, nil, nil)))
		<-time.After(time.Second)
		if got := len(ended) > 0; got != answers {
			t.Fatalf("at revision %d, pause %v, it is answered: %v", v.Revision, pause, got)
		}
	}
	tell(false, false) // this pause had begun before
	tell(true, false)
	c.conn.Close() // the request may never have arrived
	v.Revision, v.Pause = v.Revision+1, false
	c.welcome(v)
	tell(true, false)
	tell(false, true)
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
