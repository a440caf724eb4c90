package coordinator_test

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/proc/transport"
)

// TestUnread checks that while the loop is busy, a connection's receiving goroutine reads at most 8 MiB or 64 messages,
// and one more. The rest stays in the network and does not delay other connections. The loop reads everything later,
// and no connection is closed.
func TestUnread(t *testing.T) {
	for _, c := range []struct{ bytes, sent, most int }{{3 << 20, 10, 3}, {4<<20 - 100, 10, 3}, {100, 100, 65}} {
		inGuarded(t, func(g *guarded) {
			t := g.T
			busy := make(chan struct{})
			go func() { // once they are read
				<-time.After(time.Second)
				_ = g.Ask(t.Context(), func(*membership.Core, coordinator.Latest) { <-busy })
			}()
			conn := g.joins(wire.Hello{Role: wire.RoleWorker, Index: 0, Process: "w", Nonce: "w"})
			other := g.joins(wire.Hello{Role: wire.RoleWorker, Index: 1, Process: "v", Nonce: "v"})
			<-time.After(2 * time.Second)
			unread := transport.NewBudget(func() int64 { return 1 << 40 })
			conn.Charge(unread)
			other.Charge(unread)
			var speaker, another protocol.WorkerDeltaEncoder
			status := protocol.WorkerStatus{WaitReason: strings.Repeat("x", c.bytes)}
			size := 0
			for range c.sent {
				d := speaker.Delta(&status, false)
				f := wire.Control(wire.KindWorkerStatus, &d)
				size = wire.HeaderBytes + f.PayloadBytes()
				if err := conn.Send(f); err != nil {
					t.Fatal(err)
				}
			}
			<-time.After(time.Second) // everything has arrived that can
			if onWay := int(unread.Held()) / size; c.sent-onWay != c.most {
				t.Errorf("of %d messages of %d bytes %d were read, want %d", c.sent, size, c.sent-onWay, c.most)
			}
			before := unread.Held()
			d := another.Delta(&protocol.WorkerStatus{}, false)
			if err := other.Send(wire.Control(wire.KindWorkerStatus, &d)); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Second)
			if unread.Held() != before {
				t.Error("a message of another connection was not read")
			}
			close(busy)
			<-time.After(time.Second)
			synctest.Wait()
			if unread.Held() != 0 {
				t.Errorf("of %d messages of %d bytes %d were never read", c.sent, size, int(unread.Held())/size)
			}
			const mine = 77
			echo := wire.Frame{Header: wire.Header{Kind: wire.KindEcho, Shard: -1, Request: mine}}
			if err := conn.Send(echo); err != nil {
				t.Fatal(err)
			}
			for f := (wire.Frame{}); f.Request != mine; {
				if err := conn.Recv(&f); err != nil {
					t.Fatalf("the connection was closed: %v", err)
				}
			}
		})
	}
}
