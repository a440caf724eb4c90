package worker_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestReadAgainBeforeDrop checks that a row that is evicted and cached again within one clock stays subscribed. The
// client must not unsubscribe at the end of the clock and then expect pushes of the row.
func TestReadAgainBeforeDrop(t *testing.T) {
	for _, model := range []string{"essp:0", "vap:100"} {
		for again := range 2 { // either row may be the evicted one
			inCluster(t, model, "none", 2, 0, func(c *cluster) { readAgain(c, model, again) })
		}
	}
}

func readAgain(c *cluster, model string, again int) {
	var ids []perdure.RowID // rows of one shard
	for row := perdure.RowID(0); len(ids) < 3; row++ {
		if placement.ShardOf(&perdure.TableSpec{Sparse: true}, c.job.Shards, row) == 1 {
			ids = append(ids, row)
		}
	}
	w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.CacheBytes = 2 * (4*dim + 40) })
	other := c.dial("worker:1", 1)
	reader, writer := c.table(w, sparsely), c.table(other, sparsely)
	for clock := range perdure.Clock(6) {
		c.pass(time.Second) // all updates are applied and pushed by now, even under vap
		read := []perdure.RowID{ids[again]}
		switch clock {
		case 0:
			read = ids[:2] // they fill the cache
		case 1:
			read = nil
		case 2:
			read = []perdure.RowID{ids[2], ids[again]} // one row must be evicted
		}
		for _, id := range read {
			if got, _ := c.read(reader, []perdure.RowID{id}); got != float32(clock) {
				c.Fatalf("%s: row %d is %v at clock %d", model, id, got, clock)
			}
		}
		if err := writer.IncRows(ids, all(len(ids), 1)); err != nil {
			c.Fatal(err)
		}
		c.clock(other, clock+1)
		c.clock(w, clock+1)
	}
}

// slowWriter is a server's network that delays the end of each write of a push.
type slowWriter struct {
	transport.Network
	landing *atomic.Int64 // nanoseconds
}

type slowListener struct {
	transport.Listener
	landing *atomic.Int64
}

type slowConn struct {
	transport.Conn
	landing *atomic.Int64
}

func (n slowWriter) Listen(addr string) (transport.Listener, error) {
	l, err := n.Network.Listen(addr)
	return slowListener{l, n.landing}, err
}

func (l slowListener) Accept() (transport.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return slowConn{conn, l.landing}, nil
}

func (c slowConn) TrySend(frames ...wire.Frame) error {
	if d := time.Duration(c.landing.Load()); d > 0 {
		for i := range frames {
			if r := frames[i].Release; frames[i].Kind == wire.KindPush && r != nil {
				frames[i].Release = lateRelease{r, d}
			}
		}
	}
	return c.Conn.TrySend(frames...)
}

// lateRelease delays the release of a push's memory.
type lateRelease struct {
	wire.Releaser
	by time.Duration
}

func (l lateRelease) Release() { time.AfterFunc(l.by, l.Releaser.Release) }

// Keep implements wire.Keeper.
func (l lateRelease) Keep(body []byte) []byte { return l.Releaser.(wire.Keeper).Keep(body) }

// TestDueDuringRound checks that rows which change while a round is pushed in several pieces are pushed after that
// round, even if no other change triggers a push.
func TestDueDuringRound(t *testing.T) {
	const rows, dim = 64 << 10, 80 // 5 MiB in each of 4 shards; a piece has 4 MiB
	// V/√t allows slot 0's first two updates of 1 immediately, and the third only when both are seen.
	inCluster(t, "vap:2.9", "none", 3, 0, func(c *cluster) {
		c.landing.Store(int64(time.Second))
		ws := c.workers()
		var ts []*worker.Table
		for _, w := range ws {
			ts = append(ts, c.table(w, func(s *perdure.TableSpec) { s.Rows, s.Dim = rows, dim }))
		}
		values := make([]float32, rows*dim)
		if err := ts[1].GetRun(c.ctx, 0, values); err != nil {
			t.Fatal(err)
		}
		for i := range values {
			values[i] = 1
		}
		if err := ts[2].IncRun(0, values); err != nil {
			t.Fatal(err)
		}
		c.clock(ws[2], 1)
		for clock := range perdure.Clock(3) {
			c.pass(100 * time.Millisecond) // slot 2's update is being pushed to slot 1
			if err := ts[0].IncRun(0, values[:dim]); err != nil {
				t.Fatal(err)
			}
			c.clock(ws[0], clock+1)
		}
	})
}

// TestLateRoundHoldsWhatItSays checks that a read contains everything that its clocks promise, even if a slow reader's
// round starts after later updates were applied.
func TestLateRoundHoldsWhatItSays(t *testing.T) {
	inCluster(t, "essp:1", "none", 3, 0, func(c *cluster) {
		c.landing.Store(int64(time.Second))
		ws := c.workers()
		ts := c.tables(ws)
		read := func() float32 { v, _ := c.read(ts[1], []perdure.RowID{0}); return v }
		if read() != 0 || len(ws[1].Counters().ClockDifferential) != 1 {
			t.Fatal("the rows do not begin at 0")
		}
		for clock := range perdure.Clock(2) { // each is pushed; the second becomes due while the first is written
			for i, w := range ws {
				if err := ts[i].Inc(1, []float32{1, 1, 1}); err != nil {
					t.Fatal(err)
				}
				c.clock(w, clock+1)
			}
			c.read(ts[1], []perdure.RowID{1})
			c.pass(100 * time.Millisecond)
		}
		if err := ts[2].Inc(0, []float32{5, 5, 5}); err != nil { // of a clock that MinClock does not reach
			t.Fatal(err)
		}
		c.clock(ws[2], 3)
		c.pass(5 * time.Second)
		before := ws[1].Counters().ClockDifferential[0]
		value := read()
		// At clock 2, a differential of 0 claims clock 2 of slot 2, which no other slot has finished.
		says := ws[1].Counters().ClockDifferential[0] > before
		if holds := value == 5; holds != says {
			t.Errorf("row 0 is %v; that it contains slot 2's clock 2 is said: %v", value, says)
		}
	})
}
