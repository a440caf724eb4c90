package coordinator_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/perdure/perdure/internal/data/wire"
)

// TestHostTells checks that the coordinator accepts a host's report of a process's end only for processes with the
// host's secret name. An observer that does not know a name has no effect or is rejected.
func TestHostTells(t *testing.T) {
	const name = "a name that nobody guesses"
	for what, c := range map[string]struct {
		says   wire.Exited
		ends   string // the kind of process that is considered dead; "" if none
		leaves bool   // the observer is rejected
	}{
		"a worker":          {wire.Exited{Role: wire.RoleWorker, PID: 7, Host: name}, "worker", false},
		"a server":          {wire.Exited{Role: wire.RoleServer, PID: 8, Host: name}, "server", false},
		"another process":   {wire.Exited{Role: wire.RoleWorker, PID: 9, Host: name}, "", false},
		"part of a number":  {wire.Exited{Role: wire.RoleWorker, PID: 71, Host: name}, "", false},
		"another host's":    {wire.Exited{Role: wire.RoleWorker, PID: 7, Host: name + "!"}, "", false},
		"without a name":    {wire.Exited{Role: wire.RoleWorker, PID: 7}, "", true},
		"a short name":      {wire.Exited{Role: wire.RoleWorker, PID: 7, Host: "a"}, "", true},
		"of no place":       {wire.Exited{Role: wire.RoleObserver, PID: 7, Host: name}, "", true},
		"of no known place": {wire.Exited{Role: "king", PID: 7, Host: name}, "", true},
	} {
		t.Run(what, func(t *testing.T) {
			inGuarded(t, func(g *guarded) {
				g.joins(wire.Hello{
					Role: wire.RoleWorker, Index: -1, PID: 7, Process: wire.OfHost(name, 7) + "x", Nonce: "drawn",
				})
				g.joins(wire.Hello{Role: wire.RoleServer, Index: -1, PID: 8, Process: wire.OfHost(name, 8) + "y"})
				host := g.joins(wire.Hello{Role: wire.RoleObserver, Process: "host"})
				await(g.T, host, wire.KindWelcome, &wire.Welcome{})
				synctest.Wait()
				c.says.How = "killed by SIGKILL"
				echo := wire.Frame{Header: wire.Header{Kind: wire.KindEcho}}
				if err := host.Send(wire.Control(wire.KindExited, c.says), echo); err != nil {
					g.Fatal(err)
				}
				for f := (wire.Frame{}); f.Kind != wire.KindEcho && !c.leaves; { // reads all earlier answers
					if err := host.Recv(&f); err != nil {
						g.Fatal(err)
					}
				}
				f := g.facts()
				if gone := f.Slots[0].Process == ""; gone != (c.ends == "worker") {
					t.Errorf("the slot is free: %t", gone)
				}
				if gone := f.Servers[0].Left; gone != (c.ends == "server") {
					t.Errorf("the server's place is free: %t", gone)
				}
				if !c.leaves {
					return
				}
				if r := g.refused(host); !strings.Contains(r.Reason, "is not the host") {
					t.Errorf("it received %+v", r)
				}
			})
		})
	}
}
