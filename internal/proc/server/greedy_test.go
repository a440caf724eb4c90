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
	// Of a job of one slot and two shards a peer may have 28 MiB waiting.
	placeBytes = 4 << 20
	room       = (3 + admission.Spare) * placeBytes
	largeRows  = 300_000
)

// greedy is a peer of many connections, which are bounded together.
type greedy struct {
	*subject
	read []byte // of as many rows
}

func inGreedy(t *testing.T, test func(g *greedy)) {
	synctest.Test(t, func(t *testing.T) {
		s := start(t, inMemory, func(cfg *server.Config) { cfg.PlaceBytes = placeBytes })
		s.goesOn("nothing")
		rows := manyRows(largeRows)
		test(&greedy{s, wire.AppendRows(nil, &rows)})
	})
}

// asks sends reads for a clock, none of which is looked after, one after the other. It returns how many of them
// the server has taken before it ended the connection, or n.
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

// TestPeerThatReadsNowhere: what a peer leaves unread is bounded over all of its connections, none of which has much.
// The one that asks for more is ended. Meanwhile other peers are served, and another connection of this one that
// reads. What is given up is not held against the rest.
func TestPeerThatReadsNowhere(t *testing.T) {
	inGreedy(t, func(g *greedy) {
		const answer = 12 * largeRows
		const most = room / answer // beyond that each connection has one answer
		reads := g.connect(anObserver)
		for range 2 {
			one, two, three := g.connect(anObserver), g.connect(anObserver), g.connect(anObserver)
			if n := g.asks(one, 0, most/2) + g.asks(two, 0, most-most/2); n != most {
				t.Fatalf("cut off after %d answers, want %d", n, most)
			}
			before := g.log.about("takes too little on all of its connections together")
			if n := g.asks(three, 0, 3); n != 1 {
				t.Errorf("one more connection is cut off after %d answers, want 1", n)
			}
			if n := g.log.about("takes too little on all of its connections together") - before; n != 1 {
				t.Errorf("the log says %q; want one line about it", g.log.all)
			}
			g.goesOn("answers that nobody takes")
			var f wire.Frame
			for range 3 {
				if n := g.asks(reads, 0, 1); n != 1 || reads.Recv(&f) != nil || f.Kind != wire.KindRows {
					t.Fatalf("who reads is cut off, or told %d", f.Kind)
				}
			}
			one.Close()
			two.Close()
			<-time.After(10 * time.Millisecond)
		}
	})
}

// TestPeerThatWaitsEverywhere: reads that wait are bounded over all connections of a peer, too.
func TestPeerThatWaitsEverywhere(t *testing.T) {
	inGreedy(t, func(g *greedy) {
		const far = 1 << 40 // a clock that does not come
		const most = room / (8*largeRows + 128)
		small := g.connect(anObserver)
		for range 2 {
			one, two := g.connect(anObserver), g.connect(anObserver)
			if n := g.asks(one, far, most-2); n != most-2 {
				t.Fatalf("cut off after %d reads, want %d", n, most-2)
			}
			before := g.log.about("with those on its peer's other connections")
			if n := g.asks(two, far, 5); n != 2 {
				t.Errorf("one more connection is cut off after %d reads, want 2", n)
			}
			if n := g.log.about("with those on its peer's other connections") - before; n != 1 {
				t.Errorf("the log says %q; want one line about it", g.log.all)
			}
			g.goesOn("reads that wait")
			rows := manyRows(1000)
			few := &greedy{g.subject, wire.AppendRows(nil, &rows)}
			if n := few.asks(small, far, 20); n != 20 {
				t.Errorf("a connection with little that waits is cut off after %d", n)
			}
			one.Close()
			<-time.After(10 * time.Millisecond)
		}
	})
}
