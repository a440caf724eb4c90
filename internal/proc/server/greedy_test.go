package server_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/admission"
	"github.com/perdure/perdure/internal/proc/server"
	"github.com/perdure/perdure/internal/proc/transport"
)

const (
	// In a job of one slot and two shards, a peer may have 28 MiB waiting.
	placeBytes = 4 << 20
	room       = (3 + admission.SpareMembers) * placeBytes
	largeRows  = 300_000
)

// greedy is a peer with many connections, which share one limit.
type greedy struct {
	*subject
	read []byte // a read of largeRows rows
}

func inGreedy(t *testing.T, test func(g *greedy)) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory, func(cfg *server.Config) { cfg.PlaceBytes = placeBytes })
		s.goesOn("nothing")
		rows := manyRows(largeRows)
		test(&greedy{s, wire.AppendRows(nil, &rows)})
	})
}

// asks sends n reads for a clock, one after the other, without receiving answers. It returns how many the server
// accepted before it closed the connection, or n.
func (g *greedy) asks(c transport.Conn, clock perdure.Clock, n int) int {
	before := g.log.about("closed a connection")
	for i := range n {
		f := g.shardFrame(wire.KindGet, g.read, func(h *wire.Header) { h.Clock = clock })
		if err := c.Send(f); err != nil {
			g.Fatal(err)
		}
		<-time.After(10 * time.Millisecond)
		if g.log.about("closed a connection") > before {
			return i
		}
	}
	return n
}

// TestPeerThatReadsNowhere checks that a peer's unread answers are limited over all its connections, even if each has
// few. The connection that exceeds the limit is closed. In the meantime other peers are served, and so is another
// connection of this peer that reads its answers. Closed connections no longer count.
func TestPeerThatReadsNowhere(t *testing.T) {
	inGreedy(t, func(g *greedy) {
		const answer = 12 * largeRows
		const most = room / answer // beyond that, each connection has one answer
		reads := g.connect(anObserver)
		for range 2 {
			one, two, three := g.connect(anObserver), g.connect(anObserver), g.connect(anObserver)
			if n := g.asks(one, 0, most/2) + g.asks(two, 0, most-most/2); n != most {
				t.Fatalf("disconnected after %d answers, want %d", n, most)
			}
			before := g.log.about("on all of its connections together")
			if n := g.asks(three, 0, 3); n != 1 {
				t.Errorf("one more connection is closed after %d answers, want 1", n)
			}
			if n := g.log.about("on all of its connections together") - before; n != 1 {
				t.Errorf("log is %q; want one line about it", g.log.all)
			}
			g.goesOn("unread answers")
			var f wire.Frame
			for range 3 {
				if n := g.asks(reads, 0, 1); n != 1 || reads.Recv(&f) != nil || f.Kind != wire.KindRows {
					t.Fatalf("the connection that reads was closed or received kind %d", f.Kind)
				}
			}
			one.Close()
			two.Close()
			<-time.After(10 * time.Millisecond)
		}
	})
}

// TestPeerThatWaitsEverywhere checks that waiting reads are also limited over all connections of a peer.
func TestPeerThatWaitsEverywhere(t *testing.T) {
	inGreedy(t, func(g *greedy) {
		const far = 1 << 40 // a clock that is never reached
		const most = room / (8*largeRows + 128)
		small := g.connect(anObserver)
		for range 2 {
			one, two := g.connect(anObserver), g.connect(anObserver)
			if n := g.asks(one, far, most-2); n != most-2 {
				t.Fatalf("disconnected after %d reads, want %d", n, most-2)
			}
			before := g.log.about("peer's other connections")
			if n := g.asks(two, far, 5); n != 2 {
				t.Errorf("one more connection is closed after %d reads, want 2", n)
			}
			if n := g.log.about("peer's other connections") - before; n != 1 {
				t.Errorf("log is %q; want one line about it", g.log.all)
			}
			g.goesOn("waiting reads")
			rows := manyRows(1000)
			few := &greedy{g.subject, wire.AppendRows(nil, &rows)}
			if n := few.asks(small, far, 20); n != 20 {
				t.Errorf("a connection with few waiting reads is closed after %d", n)
			}
			one.Close()
			<-time.After(10 * time.Millisecond)
		}
	})
}
