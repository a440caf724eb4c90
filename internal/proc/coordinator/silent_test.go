package coordinator_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestSilentGuest checks that the connection of an unmanaged server is closed after it has been silent for too long.
// Its machine may be gone, and other servers must take over without delay. If the server lives, it reconnects.
func TestSilentGuest(t *testing.T) {
	inJob(t, testcluster.Job("bsp", "resend:10", 1, 2, 2), func(t *testing.T, on *lone) {
		hello := wire.Hello{Role: wire.RoleServer, Index: -1, Process: "guest", PID: 1, Addr: "guest:1"}
		c := peer(t, on.Net, hello)
		await(t, c, wire.KindWelcome, &wire.Welcome{})
		says := func(n uint64) {
			t.Helper()
			if err := c.Send(wire.Control(wire.KindStatus, &protocol.ServerDelta{Number: n})); err != nil {
				t.Fatal(err)
			}
		}
		const words = 50
		for n := range uint64(words) {
			says(n + 1)
			<-time.After(100 * time.Millisecond)
		}
		silent := time.Now()
		var f wire.Frame
		for c.Recv(&f) == nil { // receives views
		}
		if took := time.Since(silent); took < 300*time.Millisecond || took > 3*time.Second {
			t.Errorf("its connection was closed after %v of silence", took)
		}
		await(t, peer(t, on.Net, hello), wire.KindWelcome, &wire.Welcome{})
	})
}

// TestUnreachedGuest checks that a server which other servers cannot reach is admitted again only once they can reach
// it.
func TestUnreachedGuest(t *testing.T) {
	inJob(t, testcluster.Job("bsp", "resend:10", 1, 3, 3), func(t *testing.T, on *lone) {
		hello := wire.Hello{Role: wire.RoleServer, Index: -1, Process: "guest", PID: 1, Addr: "guest:1"}
		another := wire.Hello{Role: wire.RoleServer, Index: -1, Process: "other", PID: 2, Addr: "other:1"}
		other := peer(t, on.Net, another)
		await(t, other, wire.KindWelcome, &wire.Welcome{})
		guest := peer(t, on.Net, hello)
		await(t, guest, wire.KindWelcome, &wire.Welcome{})
		n := uint64(0)
		say := func(unreached ...string) {
			n++
			d := &protocol.ServerDelta{Number: n, Unreachable: unreached}
			if err := other.Send(wire.Control(wire.KindStatus, d)); err != nil {
				t.Fatal(err)
			}
			_ = guest.Send(wire.Control(wire.KindStatus, &protocol.ServerDelta{Number: n})) // closed at some time
			<-time.After(100 * time.Millisecond)
		}
		for range 80 {
			say("guest:1")
		}
		var f wire.Frame
		for again := peer(t, on.Net, hello); ; {
			if err := again.Recv(&f); err != nil {
				t.Fatal(err)
			}
			if f.Kind == wire.KindRefuse {
				break
			}
		}
		var r wire.Refusal
		if err := wire.ParseControl(&f, &r); err != nil || !r.Temporary {
			t.Errorf("it received %+v (%v)", r, err)
		}
		for range 5 {
			say()
		}
		await(t, peer(t, on.Net, hello), wire.KindWelcome, &wire.Welcome{})
	})
}
