package coordinator_test

import (
	"bytes"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

var chains = testcluster.Job("bsp", "chain:2", 2, 2, 2)

// TestProgressTellsNews checks that a supervisor receives the state of all servers and slots once and only changes
// afterwards. Another supervisor receives all again.
func TestProgressTellsNews(t *testing.T) {
	inJob(t, chains, func(t *testing.T, on *lone) {
		mem := on.Net
		supervisor := peer(t, mem, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})
		next := func(conn transport.Conn) wire.Progress {
			var p wire.Progress
			await(t, conn, wire.KindProgress, &p)
			return p
		}
		if p := next(supervisor); len(p.Members) != 4 {
			t.Fatalf("the first report has %d places, want 4", len(p.Members))
		}
		for range 20 {
			if p := next(supervisor); len(p.Members) != 0 {
				t.Fatalf("nothing has changed, but it received %+v", p.Members)
			}
		}
		server := peer(t, mem, wire.Hello{Role: wire.RoleServer, Index: 1, Process: "b", PID: 7})
		var w wire.Welcome
		await(t, server, wire.KindWelcome, &w)
		for sent := 0; sent == 0; {
			p := next(supervisor)
			if sent = len(p.Members); sent > 0 && (sent != 1 || p.Members[0].Process != "b") {
				t.Fatalf("server:1 has joined, and it received %+v", p.Members)
			}
		}
		if p := next(peer(t, mem, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})); len(p.Members) != 4 {
			t.Fatalf("after a reconnect the report has %d places, want 4", len(p.Members))
		}
	})
}

// TestStatusGap checks that a connection with a gap in its statuses is closed and that the server may reconnect. A
// status that was in flight on the older connection has no effect.
func TestStatusGap(t *testing.T) {
	inJob(t, chains, func(t *testing.T, on *lone) {
		mem := on.Net
		supervisor := peer(t, mem, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})
		come := func(process string) transport.Conn {
			conn := peer(t, mem, wire.Hello{Role: wire.RoleServer, Index: 1, Process: process, PID: 7})
			var w wire.Welcome
			await(t, conn, wire.KindWelcome, &w)
			return conn
		}
		say := func(conn transport.Conn, number uint64, clock perdure.Clock) {
			d := protocol.ServerDelta{
				Number: number,
				Shards: []protocol.ShardDelta{{ShardStatus: protocol.ShardStatus{Shard: 1, MinClock: clock}}},
			}
			_ = conn.Send(wire.Control(wire.KindStatus, &d)) // the connection may be closed
		}
		at := perdure.Clock(-1)
		knows := func(clock perdure.Clock) {
			t.Helper()
			<-time.After(time.Second)
			for deadline := 30; at != clock && deadline > 0; deadline-- {
				var p wire.Progress
				await(t, supervisor, wire.KindProgress, &p)
				for _, d := range p.Members {
					if d.Role == wire.RoleServer && d.Index == 1 {
						at = d.Clock
					}
				}
			}
			if at != clock {
				t.Fatalf("server:1 is known to be at clock %d, want %d", at, clock)
			}
		}
		first := come("b")
		say(first, 1, 5)
		say(first, 2, 6)
		knows(6)
		second := come("b")
		say(second, 1, 7)
		knows(7)
		say(first, 3, 99)
		say(second, 2, 8)
		knows(8)
		say(second, 4, 9) // the third status is missing
		for {
			var f wire.Frame
			if err := second.Recv(&f); err != nil {
				break
			}
		}
		third := come("b")
		say(third, 1, 10)
		knows(10)
	})
}

// TestManySlots runs a job of many slots and shards. All statuses are read in time even when nothing has changed, and
// no process is suspected while all are starting and the fences of all slots are reported.
func TestManySlots(t *testing.T) {
	const servers, slots, shards = 12, 48, 96
	job := chains
	job.Servers, job.Slots, job.Shards = servers, slots, shards
	inJob(t, job, func(t *testing.T, on *lone) {
		mem := on.Net
		supervisor := peer(t, mem, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})
		var peers sync.WaitGroup
		defer peers.Wait()
		join := func(h wire.Hello, run func(conn transport.Conn)) (conn transport.Conn) {
			conn = peer(t, mem, h)
			peers.Go(func() { run(conn) })
			return conn
		}
		for i := range servers {
			conn := join(wire.Hello{
				Role: wire.RoleServer, Index: i, Process: fmt.Sprintf("server:%d", i), PID: i + 1,
				Zone: fmt.Sprint(i),
			}, func(conn transport.Conn) { fakeServer(t, i, conn) })
			defer conn.Close()
		}
		for i := range slots {
			conn := join(wire.Hello{
				Role: wire.RoleWorker, Index: i, Process: fmt.Sprintf("worker:%d", i),
				PID: 1000 + i,
			}, fakeWorker)
			defer conn.Close()
		}
		for {
			var f wire.Frame
			if err := supervisor.Recv(&f); err != nil {
				t.Fatal(err)
			}
			var e wire.Event
			var p wire.Progress
			switch {
			case f.Kind == wire.KindEvent && wire.ParseControl(&f, &e) == nil &&
				(e.Kind == "suspected" || e.Kind == "detected"):
				t.Fatalf("%s", e.Text)
			case f.Kind == wire.KindProgress && wire.ParseControl(&f, &p) == nil && p.Serving:
				return
			}
		}
	})
}

// fakeServer reports every shard that the view assigns to it as serving, with all fences and decisions of the view
// carried out.
func fakeServer(t *testing.T, index int, conn transport.Conn) {
	var view protocol.View
	var speaker protocol.ServerDeltaEncoder
	frames := make(chan wire.Frame)
	defer func() {
		conn.Close()
		for range frames { // until its receiving goroutine ends
		}
	}()
	go func() {
		defer close(frames)
		for {
			var f wire.Frame
			if conn.Recv(&f) != nil {
				return
			}
			f.Payload = bytes.Clone(f.Payload)
			frames <- f
		}
	}()
	for {
		var f wire.Frame
		select {
		case got, more := <-frames:
			if f = got; !more {
				return
			}
		case <-time.After(100 * time.Millisecond):
		}
		var d protocol.ViewDelta
		switch {
		case f.Kind == wire.KindView && wire.ParseControl(&f, &view) == nil:
		case f.Kind == wire.KindViewDelta && wire.ParseControl(&f, &d) == nil:
			next, err := d.Apply(&view)
			if err != nil {
				t.Error(err)
				return
			}
			view = next
		}
		st := protocol.ServerStatus{Revision: view.Revision}
		for s := range view.Shards {
			sv := &view.Shards[s]
			for r := range sv.Replicas() {
				if h := sv.Replica(r); h.Server == index {
					st.Shards = append(st.Shards, well(&view, perdure.ShardID(s), h))
				}
			}
		}
		delta, _ := speaker.Delta(&st, 0, true)
		if conn.Send(wire.Control(wire.KindStatus, &delta)) != nil {
			return
		}
	}
}

// well returns the status of a replica that has done everything that the view requires.
func well(view *protocol.View, s perdure.ShardID, h protocol.Holder) protocol.ShardStatus {
	st := protocol.ShardStatus{Shard: s, Generation: 1, Epoch: view.Shards[s].Epoch, Since: h.Since, Ready: true}
	for slot, sl := range view.Slots {
		if !sl.Settled && sl.Incarnation > 0 {
			st.Fences = append(st.Fences,
				protocol.Fence{Slot: perdure.Slot(slot), Incarnation: sl.Incarnation, Carried: sl.Decided})
		}
	}
	return st
}

// fakeWorker keeps reporting the job's first clock.
func fakeWorker(conn transport.Conn) {
	var f wire.Frame
	for f.Kind != wire.KindWelcome {
		if conn.Recv(&f) != nil {
			return
		}
	}
	var speaker protocol.WorkerDeltaEncoder
	for {
		d := speaker.Delta(&protocol.WorkerStatus{Generation: 1}, true)
		if conn.Send(wire.Control(wire.KindWorkerStatus, &d)) != nil {
			return
		}
		<-time.After(100 * time.Millisecond)
	}
}

// TestProgressOfDistantSlots checks that under asp a slot that stands does not stop the clock that users see, and that
// this clock falls only in a rollback.
func TestProgressOfDistantSlots(t *testing.T) {
	for model, want := range map[string]perdure.Clock{"asp": 21, "ssp:9": 2} {
		inJob(t, testcluster.Job(model, "none", 2, 1, 1), func(t *testing.T, on *lone) {
			reach := func(slot int, clock perdure.Clock) (seen perdure.Clock) {
				name := fmt.Sprint("process", slot)
				err := on.Ask(t.Context(), func(core *membership.Core, _ coordinator.Latest) {
					core.Join(membership.Worker, slot, membership.Applicant{Process: name, PID: 1})
					core.HandleWorkerStatus(slot, name,
						protocol.WorkerStatus{Generation: core.Record().View.Generation, Clock: clock})
				})
				if err == nil {
					err = on.Ask(t.Context(), func(_ *membership.Core, l coordinator.Latest) { seen = l.Clock })
				}
				if err != nil {
					t.Fatal(err)
				}
				return seen
			}
			reach(1, 2)
			if seen := reach(0, 40); seen != want {
				t.Errorf("%s: the job is at clock %d, want %d", model, seen, want)
			}
			if seen := reach(0, 38); seen != want {
				t.Errorf("%s: the clock of the job fell to %d from %d", model, seen, want)
			}
		})
	}
}
