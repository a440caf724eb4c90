package coordinator_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
)

// TestSaysThatItHears checks that a server which waits for its admission receives keep-alives although the loop is
// busy, and none after its answer. A peer that has not presented the secret receives none.
func TestSaysThatItHears(t *testing.T) {
	inGuarded(t, func(g *guarded) {
		t := g.T
		busy := make(chan struct{})
		go func() { _ = g.Ask(t.Context(), func(*membership.Core, coordinator.Latest) { <-busy }) }()
		<-time.After(time.Second)
		server := g.joins(wire.Hello{Role: wire.RoleServer, Index: 0, Process: "s", PID: 1})
		stranger := peer(t, g.Net, wire.Hello{Role: wire.RoleServer, Index: 0, Process: "stranger", Secret: "guess"})
		var f wire.Frame
		if err := stranger.Recv(&f); err != nil || f.Kind != wire.KindRefuse {
			t.Errorf("a stranger received %v (%v)", f.Kind, err)
		}
		for began := time.Now(); time.Since(began) < time.Minute; {
			asked := time.Now()
			if err := server.Recv(&f); err != nil || f.Kind != wire.KindEcho || time.Since(asked) > 2*time.Second {
				t.Fatalf("the waiting server received %v (%v) after %v", f.Kind, err, time.Since(asked))
			}
		}
		close(busy)
		await(t, server, wire.KindWelcome, &wire.Welcome{})
		done := time.AfterFunc(time.Minute, func() { server.Close() })
		defer done.Stop()
		for server.Recv(&f) == nil {
			if f.Kind == wire.KindEcho {
				t.Fatal("a keep-alive arrived after the answer")
			}
		}
	})
}
