package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestGivenUpGetHarmsNoOther checks that a canceled Get does not cancel requests of other calls. The memory of its
// answered requests may already serve another Get.
func TestGivenUpGetHarmsNoOther(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w)
		c.clock(w, 1) // rows read at clock 0 are no longer fresh enough
		c.Net.Cut("worker:0", "server:1", false)
		ctx, giveUp := context.WithCancel(c.ctx)
		first := go1(func() error { return table.GetRun(ctx, 0, make([]float32, rows*dim)) })
		c.pass(100 * time.Millisecond) // server 0 has answered its part
		second := go1(func() error { return table.Get(c.ctx, rows-1, make([]float32, dim)) })
		c.pass(100 * time.Millisecond)
		giveUp()
		if err := <-first; !errors.Is(err, context.Canceled) {
			t.Fatalf("the Get that was given up returned %v", err)
		}
		c.Net.Heal("worker:0", "server:1")
		select {
		case err := <-second:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(10 * time.Second):
			t.Fatal("the other Get waits for ever")
		}
	})
}

// TestObserverAndRollBack checks that an observer whose read overlaps a rollback gets the requested rows of the job's
// current generation.
func TestObserverAndRollBack(t *testing.T) {
	inCluster(t, "ssp:0", "checkpoint:2", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table, sparse := c.table(w), c.table(w, sparsely, func(s *perdure.TableSpec) { s.Name = "s" })
		step := func(from, to perdure.Clock, v float32) {
			for clock := from; clock < to; clock++ {
				c.inc(table, v)
				for row := range perdure.RowID(8) {
					if err := sparse.Inc(row, []float32{v, v, v}); err != nil {
						t.Fatal(err)
					}
				}
				c.clock(w, clock+1)
			}
		}
		step(0, 2, 1)
		c.pass(time.Second) // the checkpoint of clock 2 is durable
		step(2, 3, 100)
		o := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
		seen := c.table(o)
		seenSparse := c.table(o, sparsely, func(s *perdure.TableSpec) { s.Name = "s" })
		o.SetReadClock(3)
		c.Net.Cut("observer", "server:1", false)
		read := go1(func() float32 { return c.get(seen) })
		stored := go1(func() int {
			ids, err := seenSparse.StoredRows(c.ctx)
			if err != nil {
				t.Error(err)
			}
			return len(ids)
		})
		c.pass(time.Second) // server 0 has answered from the old generation
		c.Kill("server:1")
		c.start("server:1")
		c.Net.Heal("observer", "server:1")
		c.pass(time.Second)
		c.clock(w, 2)
		if len(read)+len(stored) != 0 {
			t.Fatal("the observer at clock 3 read before clock 2 was done again")
		}
		step(2, 3, 1)
		if got := <-read; got != 3 {
			t.Errorf("the observer read %v, want 3", got)
		}
		if got := <-stored; got != 8 {
			t.Errorf("the observer found %d rows stored, want 8", got)
		}
	})
}

// TestRollBackWhileOthersRead checks that a Get that was waiting during a rollback returns ErrRolledBack, even if the
// program calls Clock before the Get could return.
func TestRollBackWhileOthersRead(t *testing.T) {
	inCluster(t, "ssp:0", "checkpoint:2", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		c.inc(ts[0], 1)
		c.clock(ws[0], 1)
		var reads []chan error
		for range 8 {
			reads = append(reads, go1(func() error { return ts[0].GetRun(c.ctx, 0, make([]float32, rows*dim)) }))
		}
		rolled := go1(func() error {
			for {
				// Immediately after the rollback, Clock returns the cut.
				if err := ts[0].IncRows(nil, nil); err != nil {
					_, err = ws[0].Clock(c.ctx)
					return err
				}
				c.pass(time.Microsecond)
			}
		})
		c.pass(10 * time.Millisecond)
		c.Kill("server:0")
		c.start("server:0")
		if err := <-rolled; err != nil {
			t.Fatal(err)
		}
		for _, read := range reads {
			select {
			case err := <-read:
				if !errors.Is(err, perdure.ErrRolledBack) {
					t.Errorf("a Get returned %v, want ErrRolledBack", err)
				}
			case <-time.After(10 * time.Second):
				t.Fatal("a Get waits for ever")
			}
		}
	})
}

// TestReadsDoNotBlockOthers checks that reads from one server do not wait for another server. Reads that wait for their
// turn proceed when others are canceled.
func TestReadsDoNotBlockOthers(t *testing.T) {
	inCluster(t, "asp", "none", 1, 0, func(c *cluster) {
		const bigRows, bigDim = 80, 128 << 10 // 40 MiB, half of it on each server
		w := c.dial("worker:0", 0)
		table := c.table(w, func(s *perdure.TableSpec) { s.Rows, s.Dim = bigRows, bigDim })
		c.Net.Cut("worker:0", "server:1", false)
		ctx, giveUp := context.WithCancel(c.ctx)
		large := go1(func() error { return table.GetRun(ctx, bigRows/2, make([]float32, bigRows/2*bigDim)) })
		c.pass(time.Millisecond)
		behind := go1(func() error { return table.Get(c.ctx, bigRows-1, make([]float32, bigDim)) })
		c.pass(time.Millisecond)
		if err := table.Get(c.within(time.Second), 1, make([]float32, bigDim)); err != nil {
			t.Errorf("a read from a server that is there: %v", err)
		}
		if len(large)+len(behind) > 0 {
			t.Error("rows came through a cut network")
		}
		giveUp()
		if err := <-large; !errors.Is(err, context.Canceled) {
			t.Errorf("the read that was given up: %v", err)
		}
		c.pass(time.Second)
		c.Net.Heal("worker:0", "server:1")
		select {
		case err := <-behind:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("what waited behind a read that was given up waits for ever")
		}
	})
}
