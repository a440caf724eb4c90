package coordinator_test

import (
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// peer connects and sends a Hello to the coordinator.
func peer(t *testing.T, mem *transport.Memory, h wire.Hello) transport.Conn {
	t.Helper()
	conn, err := mem.Host(h.Process).Dial(t.Context(), testcluster.CoordinatorAddr)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	if err := conn.Send(wire.Control(wire.KindHello, h)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// await receives until a frame of a kind arrives.
func await(t *testing.T, conn transport.Conn, kind wire.Kind, v any) {
	t.Helper()
	for {
		var f wire.Frame
		if err := conn.Recv(&f); err != nil {
			t.Fatalf("waiting for a frame of kind %d: %v", kind, err)
		}
		if f.Kind != kind {
			continue
		}
		if err := wire.ParseControl(&f, v); err != nil {
			t.Fatal(err)
		}
		return
	}
}

// TestFailedJob checks that all members learn why the job failed when a chain's last servers have died, including
// members that reconnect later, even to the next coordinator.
func TestFailedJob(t *testing.T) {
	job := testcluster.Job("ssp:1", "chain:2", 1, 2, 2)
	inJob(t, job, func(t *testing.T, on *lone) {
		mem := on.Net
		observer := peer(t, mem, wire.Hello{Role: wire.RoleObserver, Process: "observer"})
		supervisor := peer(t, mem, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})
		for i, name := range []string{"a", "b"} {
			conn := peer(t, mem, wire.Hello{Role: wire.RoleServer, Index: i, Process: name, PID: i + 1, Zone: name})
			var w wire.Welcome
			await(t, conn, wire.KindWelcome, &w)
		}
		for i := range 2 {
			if err := supervisor.Send(wire.Control(wire.KindExited,
				wire.Exited{Role: wire.RoleServer, Index: i, PID: i + 1, How: "killed"})); err != nil {
				t.Fatal(err)
			}
		}
		said := func(supervisor, other transport.Conn) {
			t.Helper()
			for e := (wire.Event{}); e.Kind != "failed"; {
				await(t, supervisor, wire.KindEvent, &e)
				if e.Kind == "failed" && !strings.Contains(e.Text, "shard 0") {
					t.Errorf("the supervisor received %q", e.Text)
				}
			}
			var r wire.Refusal
			if await(t, other, wire.KindRefuse, &r); !r.JobEnded || !strings.Contains(r.Reason, "the rows of shard 0") {
				t.Errorf("other members received %+v", r)
			}
		}
		said(supervisor, observer)
		on.Stop(testcluster.CoordinatorHost)
		on.start(t, job)
		said(peer(t, mem, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"}),
			peer(t, mem, wire.Hello{Role: wire.RoleWorker, Index: -1, Process: "w"}))
	})
}
