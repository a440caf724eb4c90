package coordinator_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
)

// as returns a Hello in a role.
func as(role wire.Role) wire.Hello {
	h := wire.Hello{Role: role, Process: "somebody", PID: 7}
	switch role {
	case wire.RoleWorker:
		h.Nonce = "drawn"
	case wire.RoleObserver:
		h.Index = int(perdure.NoSlot)
	case wire.RoleServer:
		h.Addr = "somewhere/1"
	}
	return h
}

// asItShouldBe returns a valid message of a kind that a role may send.
func asItShouldBe(kind wire.Kind, role wire.Role) wire.Frame {
	switch kind {
	case wire.KindStatus:
		var sent protocol.ServerDeltaEncoder
		d, _ := sent.Delta(&protocol.ServerStatus{Revision: 1}, 0, false)
		return wire.Control(kind, d)
	case wire.KindWorkerStatus:
		var sent protocol.WorkerDeltaEncoder
		return wire.Control(kind, sent.Delta(&protocol.WorkerStatus{Generation: 1}, true))
	case wire.KindTable:
		return wire.Control(kind, perdure.TableSpec{
			Name: "t", Rows: 4, Dim: 1, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			Consistency: perdure.Consistency{Kind: perdure.BSP},
		})
	case wire.KindReport:
		accuracy := 0.5
		return wire.Control(kind, wire.Report{Generation: 1, TestAccuracy: &accuracy})
	case wire.KindExited:
		e := wire.Exited{Role: wire.RoleWorker, PID: 7, How: "it left"}
		if role == wire.RoleObserver {
			e.Host = strings.Repeat("host", 8)
		}
		return wire.Control(kind, e)
	case wire.KindOrder:
		return wire.Control(kind, wire.Order{Kind: wire.OrderLogState, PID: 7, Spec: "running 1"})
	}
	return wire.Frame{Header: wire.Header{Kind: kind, Shard: -1}}
}

// says connects in a role, sends a frame, and returns why the connection was closed, or "" if it was not.
func (g *guarded) says(role wire.Role, f wire.Frame) (reason string) {
	g.Helper()
	conn := g.joins(as(role))
	synctest.Wait()
	if err := conn.Send(f); err != nil {
		g.Fatal(err)
	}
	received := make(chan string, 1)
	go func() { received <- untilEnd(conn) }()
	select {
	case reason = <-received:
		if reason == "" {
			reason = "without a reason"
		}
	case <-time.After(100 * time.Millisecond):
	}
	return reason
}

// untilEnd receives until a connection ends and returns the reason, if one was received.
func untilEnd(conn transport.Conn) (reason string) {
	var f wire.Frame
	for conn.Recv(&f) == nil {
		var r wire.Refusal
		if f.Kind == wire.KindRefuse && wire.ParseControl(&f, &r) == nil {
			reason = r.Reason
		}
	}
	return reason
}

// TestRightsAtCoordinator sends a coordinator every kind of message in every role. docs/design/security.md lists what
// each role may send. Any other message closes the connection with an explanation.
func TestRightsAtCoordinator(t *testing.T) {
	rights, err := testcluster.ParseSenders("../../..")
	if err != nil {
		t.Fatal(err)
	}
	roles := []wire.Role{wire.RoleServer, wire.RoleWorker, wire.RoleObserver, wire.RoleSupervisor}
	for _, role := range roles {
		for n := range 256 { // each in its own job, since a permitted message may change the job
			kind := wire.Kind(n)
			want := fmt.Sprintf("no %s may send a frame of kind %d to a coordinator", role, kind)
			if slices.Contains(rights[kind].Coordinator, role) {
				want = ""
			}
			inGuarded(t, func(g *guarded) {
				if says := g.says(role, asItShouldBe(kind, role)); says != want {
					g.Errorf("a %s that sends kind %d (%s) received %q; want %q", role, kind, rights[kind].Name, says,
						want)
				}
			})
		}
	}
	inGuarded(t, func(g *guarded) {
		if r := g.refused(g.joins(as(wire.RoleCoordinator))); r.Temporary || r.Reason == "" {
			g.Errorf("another coordinator received %+v", r)
		}
	})
}
