package worker_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestClocksThatWereDone checks that a slot's next process repeats clocks that some shards have from its predecessor.
// The memory of these updates must not be reused while they may still be in transit.
func TestClocksThatWereDone(t *testing.T) {
	inCluster(t, "asp", "none", 1, 0, func(c *cluster) {
		const bigRows, bigDim = 128, 16 << 10
		big := func(s *perdure.TableSpec) { s.Rows, s.Dim = bigRows, bigDim }
		delta := make([]float32, bigRows*bigDim)
		do := func(w *worker.Client, table *worker.Table, clocks int) {
			for clock := range clocks {
				for i := range delta {
					delta[i] = float32(clock + 1)
				}
				if err := table.IncRun(0, delta); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Clock(c.ctx); err != nil {
					t.Fatal(err)
				}
				c.pass(20 * time.Millisecond)
			}
		}
		former := c.dial("worker:0", 0)
		table := c.table(former, big)
		c.Net.Cut("worker:0", "server:1", false)
		do(former, table, 3)
		c.Net.Kill("worker:0")
		net := &lazyNetwork{
			Network: c.Net.Host("next"), t: t, rng: rand.New(rand.NewPCG(*seed, 7)),
			most: 20 * time.Millisecond,
		}
		next := c.dial("next", 0, func(cfg *testcluster.DialConfig) { cfg.Network = net })
		if next.Now() != 0 {
			t.Fatalf("the next process begins at clock %d, want 0", next.Now())
		}
		table = c.table(next, big)
		do(next, table, 5)
		if err := next.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		table.Forget()
		got := make([]float32, bigRows*bigDim)
		if err := table.GetRun(c.ctx, 0, got); err != nil {
			t.Fatal(err)
		}
		for i, v := range got {
			if v != 1+2+3+4+5 {
				t.Fatalf("row %d is %v, want each of 5 clocks once: 15", i/bigDim, v)
			}
		}
	})
}

// TestFlushAfterInterruptedClock checks that Flush after an interrupted call of Clock sends nothing for the clock that
// is being ended.
func TestFlushAfterInterruptedClock(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w)
		c.inc(table, 1)
		c.cutServers("worker:0")
		if _, err := w.Clock(c.within(time.Second)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		c.inc(table, 10) // of the next clock
		if err := table.Flush(); err != nil {
			t.Fatal(err)
		}
		c.healServers("worker:0")
		for clock := range perdure.Clock(3) {
			if _, err := w.Clock(c.within(10 * time.Second)); err != nil {
				t.Fatalf("Clock %d: %v", clock, err)
			}
		}
		if got := c.get(table); got != 11 {
			t.Fatalf("the rows are %v, want 11", got)
		}
	})
}

// TestObserverHasNoClocks checks that calls which an observer may not make return a one-line error without waiting.
func TestObserverHasNoClocks(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		c.inc(c.table(w), 1)
		c.clock(w, 1)
		o := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
		table := c.table(o)
		o.SetReadClock(1)
		_, clock := o.Clock(c.within(time.Second))
		_, load := o.LoadState(c.within(time.Second))
		for what, err := range map[string]error{
			"Clock": clock, "LoadState": load, "SaveState": o.SaveState(nil), "Flush": table.Flush(),
			"IncRows": table.IncRows(nil, nil), "Finish": o.Finish(c.within(time.Second)),
		} {
			if !errors.Is(err, perdure.ErrUsage) {
				t.Errorf("an observer's %s: %v", what, err)
			}
		}
		if err := o.Settle(c.within(time.Second)); err != nil {
			t.Errorf("an observer's Settle: %v; it has nothing to wait for", err)
		}
		if got := c.get(table); got != 1 {
			t.Errorf("after that it reads %v, want 1", got)
		}
	})
}
