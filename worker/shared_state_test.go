package worker_test

import (
	"context"
	"errors"
	"io"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// marks dials both workers and finishes three clocks, whose shared state both have.
func marks(c *cluster) (ws []*worker.Client, ts []*worker.Table) {
	ws = c.workers(atCuts)
	ts = c.tables(ws)
	for clock := range perdure.Clock(3) {
		both(2, func(slot int) {
			worker.NewSharedState(ws[slot]).Mark(true)
			c.inc(ts[slot], 1)
			c.clock(ws[slot], clock+1)
		})
		both(2, func(slot int) { c.get(ts[slot]) })
	}
	both(2, func(slot int) { worker.NewSharedState(ws[slot]).Mark(true) })
	return ws, ts
}

func atCuts(cfg *testcluster.DialConfig) { cfg.SavesAtCuts = true }

// TestSharedState checks that the process that replaces a dead one gets the shared state that a living one saves, while
// it waits for the clock's end, and that no clock is redone.
func TestSharedState(t *testing.T) {
	inCluster(t, "bsp", "checkpoint:100", 2, 0, func(c *cluster) {
		ws, ts := marks(c)
		c.inc(ts[1], 1)
		c.clock(ws[1], 4)
		c.Net.Kill("worker:0")
		source := worker.NewSharedState(ws[1])
		if err := source.AwaitRequest(c.ctx); err != nil {
			t.Fatal(err)
		}
		tries := 0
		if err := source.Save(c.ctx, 6, func(_ context.Context, w io.Writer) error {
			if tries++; tries == 1 {
				return errors.New("a broken connection")
			}
			_, err := io.WriteString(w, "shared")
			return err
		}); err != nil || tries != 2 {
			t.Fatalf("Save gave %v after %d tries", err, tries)
		}
		next := c.dial("worker:0", 0, atCuts)
		size, err := worker.NewSharedState(next).AwaitCopy(c.ctx)
		got := make([]byte, size)
		if err == nil {
			err = worker.NewSharedState(next).TakeCopy(c.ctx, got)
		}
		if err != nil || string(got) != "shared" || next.Now() != 3 || next.Generation() != 1 {
			t.Fatalf("at clock %d of generation %d, the copy is %q, %v", next.Now(), next.Generation(), got, err)
		}
		worker.NewSharedState(next).Mark(true)
		table := c.table(next)
		c.inc(table, 1)
		c.clock(next, 4)
		if sum := c.get(table); sum != 8 {
			t.Fatalf("the sum of four clocks of two slots is %v", sum)
		}
	})
}

// TestSharedStateLost checks that all roll back if the source dies before it has saved the state.
func TestSharedStateLost(t *testing.T) {
	inCluster(t, "bsp", "checkpoint:100", 2, 0, func(c *cluster) {
		ws, _ := marks(c)
		c.Net.Kill("worker:0")
		if err := worker.NewSharedState(ws[1]).AwaitRequest(c.ctx); err != nil {
			t.Fatal(err)
		}
		next := c.dial("worker:0", 0, atCuts)
		both(2, func(i int) {
			if i == 0 {
				c.Net.Kill("worker:1")
			} else if n, err := worker.NewSharedState(next).AwaitCopy(c.ctx); !errors.Is(err, perdure.ErrRolledBack) {
				t.Errorf("AwaitCopy gave %d, %v", n, err)
			}
		})
	})
}

// TestLoadFrom checks that a slot's program gets the state that another one saved before the current clock, and not the
// one that it saves in this clock.
func TestLoadFrom(t *testing.T) {
	inCluster(t, "bsp", "checkpoint:100", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		save := func(state string) {
			if err := ws[0].SaveState([]byte(state)); err != nil {
				t.Error(err)
			}
		}
		both(2, func(slot int) {
			if slot == 0 {
				save("first")
			}
			c.inc(ts[slot], 1)
			c.clock(ws[slot], 1)
			c.get(ts[slot])
		})
		save("second")
		c.inc(ts[0], 1)
		c.clock(ws[0], 2)
		got, err := worker.NewSharedState(ws[1]).LoadFrom(c.ctx, 0)
		if string(got.State) != "first" || got.Clock != 0 || err != nil {
			t.Errorf("the state of clock %d is %q, %v", got.Clock, got.State, err)
		}
		if _, err := worker.NewSharedState(ws[1]).LoadFrom(c.ctx, 2); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("a slot that does not exist gives %v", err)
		}
		if saver := worker.NewSharedState(ws[1]).Saver(); saver != 0 {
			t.Errorf("slot %d saves the shared state", saver)
		}
	})
}
