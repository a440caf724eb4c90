package coordinator_test

import (
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
)

// ordered returns the next order on a connection, or "" if none arrives within a second. It closes the connection.
func ordered(g *guarded, conn transport.Conn) string {
	g.Helper()
	defer time.AfterFunc(time.Second, func() { conn.Close() }).Stop()
	for {
		var f wire.Frame
		if conn.Recv(&f) != nil {
			return ""
		}
		if f.Kind == wire.KindOrder {
			var o wire.Order
			if err := wire.ParseControl(&f, &o); err != nil {
				g.Fatal(err)
			}
			return string(o.Kind) + " " + o.Spec
		}
	}
}

// TestDrain checks that only the processes that must drain receive the order: a server, or a host and, if a notice is
// given, its servers. Invalid requests are rejected and send nothing.
func TestDrain(t *testing.T) {
	const a, b = "the name of a that nobody guesses", "the name of b that nobody guesses"
	server := func(i int) coordinator.Drained {
		return coordinator.Drained{Kind: membership.Server, Index: i, Incarnation: 1}
	}
	worker := coordinator.Drained{Kind: membership.Worker, Index: 0, Incarnation: 1}
	for who, c := range map[string]struct {
		notice time.Duration
		all    []coordinator.Drained
		told   [4]string // expected at host a, host b, server 0 of a, server 1 of b
		kind   error
		says   string
	}{
		"server:1": {0, []coordinator.Drained{server(1)}, [4]string{3: "drain 0"}, nil, ""},
		"host-a":   {0, []coordinator.Drained{server(0), worker}, [4]string{0: "drain 0"}, nil, ""},
		"host-b": {
			25 * time.Second, []coordinator.Drained{server(1)}, [4]string{1: "drain 25000", 3: "drain 25000"}, nil, "",
		},
		"host-c": {
			0, nil, [4]string{}, perdure.ErrUsage, `no host "host-c": its hosts are host-a, host-b`,
		},
		"":         {0, nil, [4]string{}, perdure.ErrUsage, "no host"},
		"server:2": {0, nil, [4]string{}, perdure.ErrUsage, "servers are 0 to 1"},
		"server:x": {0, nil, [4]string{}, perdure.ErrUsage, "no server:x"},
		"worker:0": {0, nil, [4]string{}, perdure.ErrUsage, "scale --leave 0"},
	} {
		t.Run(who, func(t *testing.T) {
			inGuarded(t, func(g *guarded) {
				var conns [4]transport.Conn
				join := func(h wire.Hello) transport.Conn {
					conn := g.joins(h)
					await(g.T, conn, wire.KindWelcome, &wire.Welcome{})
					return conn
				}
				conns[0] = join(wire.Hello{Role: wire.RoleObserver, Process: a, DisplayName: "host-a"})
				conns[1] = join(wire.Hello{Role: wire.RoleObserver, Process: b, DisplayName: "host-b"})
				conns[2] = join(wire.Hello{Role: wire.RoleServer, Index: -1, PID: 8, Process: wire.OfHost(a, 8) + "y"})
				conns[3] = join(wire.Hello{Role: wire.RoleServer, Index: -1, PID: 9, Process: wire.OfHost(b, 9) + "z"})
				g.joins(wire.Hello{
					Role: wire.RoleWorker, Index: -1, PID: 7, Process: wire.OfHost(a, 7) + "x", Nonce: "drawn",
				})
				<-time.After(time.Second) // all orders have arrived
				var all []coordinator.Drained
				var refused error
				host := ""
				if err := g.Ask(g.Context(), func(core *membership.Core, latest coordinator.Latest) {
					host = latest.Host(core.Record().Servers[1].Process) + latest.Host("another's") + latest.Host("")
					all, refused = latest.Drain(core, who, c.notice)
				}); err != nil {
					t.Fatal(err)
				}
				if host != "host-b" {
					t.Errorf("the host of server 1 is %q", host)
				}
				if !reflect.DeepEqual(all, c.all) || !errors.Is(refused, c.kind) ||
					c.kind != nil && !strings.Contains(refused.Error(), c.says) {
					t.Errorf("%+v, %v; want %+v, %v", all, refused, c.all, c.says)
				}
				for i, conn := range conns {
					if says := ordered(g, conn); says != c.told[i] {
						t.Errorf("connection %d received %q, want %q", i, says, c.told[i])
					}
				}
			})
		})
	}
}

// TestDrainTheLast checks that a server is not drained if no other server can take over.
func TestDrainTheLast(t *testing.T) {
	inGuarded(t, func(g *guarded) {
		for pid := range 2 {
			hello := wire.Hello{Role: wire.RoleServer, Index: pid, PID: pid + 1, Process: fmt.Sprint("s", pid)}
			conn := g.joins(hello)
			await(g.T, conn, wire.KindWelcome, &wire.Welcome{})
			if pid == 1 {
				conn.Close()
			}
		}
		<-time.After(100 * time.Millisecond) // the coordinator has noticed that it left
		var refused error
		if err := g.Ask(g.Context(), func(core *membership.Core, latest coordinator.Latest) {
			_, refused = latest.Drain(core, "server:0", 0)
		}); err != nil {
			t.Fatal(err)
		}
		if !errors.Is(refused, perdure.ErrRefused) || !strings.Contains(refused.Error(), "could take over") {
			t.Errorf("the last server: %v", refused)
		}
	})
}
