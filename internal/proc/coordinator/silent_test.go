package coordinator_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/rig"
)

// TestSilentGuest: the connection of a server that nobody here can kill is ended when it has been silent for too long,
// as if it had broken: its machine may be gone without a word, and the others are to take over at once. If it lives it
// comes again.
func TestSilentGuest(t *testing.T) {
	inJob(t, rig.Job("bsp", "resend:10", 1, 2, 2), func(t *testing.T, on *lone) {
		hello := wire.Hello{Role: wire.RoleServer, Index: -1, Process: "guest", PID: 1, Addr: "guest:1"}
		c := peer(t, on.Net, hello)
		await(t, c, wire.KindWelcome, &wire.Welcome{})
		says := func(n uint64) {
			t.Helper()
			if err := c.Send(wire.Control(wire.KindStatus, &words.ServerDelta{Number: n})); err != nil {
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
		for c.Recv(&f) == nil { // views
		}
		if took := time.Since(silent); took < 500*time.Millisecond || took > 3*time.Second {
			t.Errorf("its connection is ended after %v of silence", took)
		}
		await(t, peer(t, on.Net, hello), wire.KindWelcome, &wire.Welcome{})
	})
}
