package coordinator_test

import (
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestFarewell checks that all members are notified of the end of a job, including members that connect at that time.
// The coordinator ends when all have disconnected, and does not wait long for one that does not.
func TestFarewell(t *testing.T) {
	for _, deaf := range []bool{false, true} {
		inJob(t, testcluster.Job("bsp", "none", 1, 2, 2), func(t *testing.T, on *lone) {
			mem := on.Net
			hear := func(conn transport.Conn) {
				var r wire.Refusal
				if await(t, conn, wire.KindRefuse, &r); !r.JobEnded || r.Reason != "the job was ended: enough" {
					t.Errorf("told %+v", r)
				}
			}
			server := peer(t, mem, wire.Hello{Role: wire.RoleServer, Index: 0, Process: "a", PID: 1})
			supervisor := peer(t, mem, wire.Hello{Role: wire.RoleSupervisor, Process: "supervisor"})
			var w wire.Welcome
			await(t, server, wire.KindWelcome, &w)
			await(t, supervisor, wire.KindWelcome, &w)
			asked := time.Now()
			if err := supervisor.Send(wire.Control(wire.KindOrder,
				wire.Order{Kind: "end", Spec: "enough"})); err != nil {
				t.Fatal(err)
			}
			hear(server)
			hear(peer(t, mem, wire.Hello{Role: wire.RoleServer, Index: 1, Process: "b", PID: 2}))
			select {
			case <-on.process.Ended():
				t.Fatalf("it ended (%v) before all members had gone", on.process.Wait())
			default:
			}
			if !deaf {
				server.Close()
			}
			if err := on.process.Wait(); !errors.Is(err, perdure.ErrStopped) {
				t.Errorf("it ended with %v", err)
			}
			if took := time.Since(asked); deaf != (took >= 200*time.Millisecond) || took > 500*time.Millisecond {
				t.Errorf("one member stays: %v; the coordinator ended after %v", deaf, took)
			}
		})
	}
}
