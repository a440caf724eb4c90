package worker_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

func (c *cluster) cutServers(host string) {
	for i := range c.job.Servers {
		c.Net.Cut(host, fmt.Sprintf("server:%d", i), false)
	}
}

func (c *cluster) healServers(host string) {
	for i := range c.job.Servers {
		c.Net.Heal(host, fmt.Sprintf("server:%d", i))
	}
}

// TestContexts checks that a call whose ctx ends returns ctx's error, has no partial effect, and can be repeated.
func TestContexts(t *testing.T) {
	inCluster(t, "bsp", "none", 2, 0, func(c *cluster) {
		ws := c.workers()
		c.cutServers("worker:0")
		spec := perdure.TableSpec{Name: "t", Rows: rows, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
		expect := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, context.DeadlineExceeded) {
				t.Fatalf("%s: %v; want ctx's error", what, err)
			}
		}
		_, err := ws[0].Table(c.within(time.Second), spec)
		expect("Table", err)
		_, err = ws[0].LoadState(c.within(time.Second))
		expect("LoadState", err)
		c.healServers("worker:0")
		ts := c.tables(ws)
		c.inc(ts[0], 1)
		c.cutServers("worker:0")
		for range 3 {
			clock, err := ws[0].Clock(c.within(time.Second))
			expect("Clock", err)
			if clock != 0 {
				t.Fatalf("a Clock that was cut short gave clock %d, want the present one, 0", clock)
			}
		}
		c.healServers("worker:0")
		c.clock(ws[0], 1)
		expect("Get", ts[0].Get(c.within(time.Second), 0, make([]float32, dim))) // the other slot is at clock 0
		expect("Finish", ws[0].Finish(c.within(time.Second)))
		c.clock(ws[1], 1)
		for slot := range ts {
			if got := c.get(ts[slot]); got != 1 {
				t.Fatalf("slot %d read %v; what was Inc'd once must count once", slot, got)
			}
		}
	})
}

// TestWindow checks that a program may have WindowBytes of unacknowledged updates, and that Clock then waits.
func TestWindow(t *testing.T) {
	inCluster(t, "asp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.WindowBytes = 2000 })
		table := c.table(w)
		c.cutServers("worker:0")
		clock := perdure.Clock(0)
		for {
			c.inc(table, 1)
			next, err := w.Clock(c.within(time.Second))
			if errors.Is(err, context.DeadlineExceeded) {
				break
			}
			if err != nil || next != clock+1 || next > 20 {
				t.Fatalf("Clock gave %d, %v after %d", next, err, clock)
			}
			clock = next
		}
		// 4 updates with an update header, a block header and 2 or 3 rows each: about 600 bytes per clock.
		if clock < 2 || clock > 8 {
			t.Errorf("%d clocks went into a window of 2000 bytes", clock)
		}
		waiting := go1(func() error { _, err := w.Clock(c.ctx); return err })
		c.pass(time.Second)
		if len(waiting) != 0 {
			t.Fatal("Clock did not wait for the window")
		}
		c.healServers("worker:0")
		if err := <-waiting; err != nil {
			t.Fatal(err)
		}
		c.pass(time.Second)
		if o := c.observer(clock + 1); o != float32(clock+1) {
			t.Fatalf("the table has %v, want %d", o, clock+1)
		}
	})
}

// observer reads the table at a clock that every slot has finished.
func (c *cluster) observer(at perdure.Clock) float32 {
	c.Helper()
	w := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
	defer w.Close()
	t := c.table(w)
	w.SetReadClock(at)
	return c.get(t)
}

// TestObserver checks that an observer reads exactly at the clock that it sets, under every consistency model, and that
// it cannot change anything.
func TestObserver(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:5", "asp"} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "none", 2, 0, func(c *cluster) {
				ws := c.workers()
				ts := c.tables(ws)
				o := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
				table := c.table(o)
				if got := c.get(table); got != 0 || o.Slot() != perdure.NoSlot {
					t.Fatalf("at first the observer, in slot %d, read %v", o.Slot(), got)
				}
				if err := table.Inc(0, make([]float32, dim)); !errors.Is(err, perdure.ErrUsage) {
					t.Errorf("an observer's Inc: %v", err)
				}
				err := o.EndJob(c.ctx)
				if !errors.Is(err, perdure.ErrUsage) || !strings.Contains(err.Error(), "perdure stop") {
					t.Errorf("an observer's EndJob: %v", err)
				}
				o.Report(worker.Report{Clock: 0}) // a report would end its connection to the coordinator
				o.SetReadClock(2)
				got := go1(func() float32 { return c.get(table) })
				for clock := range perdure.Clock(2) {
					c.pass(time.Second)
					if len(got) != 0 {
						t.Fatalf("the observer at clock 2 did not wait for clock %d", clock)
					}
					both(2, func(slot int) {
						c.inc(ts[slot], 1)
						c.clock(ws[slot], clock+1)
					})
				}
				if v := <-got; v != 4 {
					t.Fatalf("the observer at clock 2 read %v, want 4", v)
				}
			})
		})
	}
}

// TestRollBack checks that after a rollback pending and later calls return ErrRolledBack immediately, Clock returns the
// cut, and rows and saved states are those of the cut.
func TestRollBack(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:0"} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "checkpoint:2", 2, 0, func(c *cluster) {
				ws := c.workers()
				ts := c.tables(ws)
				step := func(slot int, clock perdure.Clock) {
					if got := c.get(ts[slot]); got != float32(2*clock) {
						t.Errorf("slot %d at clock %d read %v, want %d", slot, clock, got, 2*clock)
					}
					c.inc(ts[slot], 1)
					if err := ws[slot].SaveState(fmt.Appendf(nil, "slot %d after clock %d", slot, clock)); err != nil {
						t.Error(err)
					}
					c.clock(ws[slot], clock+1)
				}
				both(2, func(slot int) {
					for clock := range perdure.Clock(5) {
						step(slot, clock)
					}
				})
				c.pass(time.Second) // the checkpoint of clock 4 is durable
				step(0, 5)
				dst := make([]float32, rows*dim)
				pending := go1(func() error { return ts[0].GetRun(c.ctx, 0, dst) }) // slot 1 is at clock 5
				finishing := go1(func() error { return ws[1].Finish(c.ctx) })
				c.pass(time.Second)
				if len(pending)+len(finishing) != 0 {
					t.Fatal("a Get or Finish that has to wait did not")
				}
				c.Kill("server:0")
				c.start("server:0")
				for what, ended := range map[string]chan error{"Get": pending, "Finish": finishing} {
					if err := <-ended; !errors.Is(err, perdure.ErrRolledBack) {
						t.Fatalf("a pending %s returned %v", what, err)
					}
				}
				for slot, w := range ws {
					c.rolledBack(w, ts[slot])
					c.clock(w, 4)
					if state, err := w.LoadState(c.ctx); err != nil ||
						string(state) != fmt.Sprintf("slot %d after clock 3", slot) {
						t.Errorf("slot %d: LoadState gave %q, %v", slot, state, err)
					}
				}
				both(2, func(slot int) {
					for clock := perdure.Clock(4); clock < 9; clock++ {
						step(slot, clock)
					}
				})
			})
		})
	}
}

// rolledBack checks that every call except Clock returns ErrRolledBack without waiting.
func (c *cluster) rolledBack(w *worker.Client, t *worker.Table) {
	c.Helper()
	start := time.Now()
	row := make([]float32, dim)
	_, load := w.LoadState(c.ctx)
	for what, err := range map[string]error{
		"Get": t.Get(c.ctx, 0, row), "GetRun": t.GetRun(c.ctx, 0, row),
		"GetRows": t.GetRows(c.ctx, []perdure.RowID{1}, row),
		"Inc":     t.Inc(0, row), "IncRun": t.IncRun(0, row), "IncRows": t.IncRows([]perdure.RowID{1}, row),
		"SaveState": w.SaveState(nil), "LoadState": load, "Finish": w.Finish(c.ctx), "EndJob": w.EndJob(c.ctx),
	} {
		if !errors.Is(err, perdure.ErrRolledBack) {
			c.Errorf("slot %d, %s after a roll-back: %v", w.Slot(), what, err)
		}
	}
	if d := time.Since(start); d != 0 {
		c.Errorf("slot %d: these calls waited %v", w.Slot(), d)
	}
}

// TestSuccessor checks that under bsp a slot's replacement process starts exactly after the last clock that its
// predecessor finished, with the state saved then. Effects of an unfinished clock must not be visible.
func TestSuccessor(t *testing.T) {
	inCluster(t, "bsp", "none", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		if state, err := ws[0].LoadState(c.ctx); state != nil || err != nil {
			t.Fatalf("at first LoadState gave %q, %v", state, err)
		}
		for clock := range perdure.Clock(3) {
			both(2, func(slot int) {
				c.inc(ts[slot], 1)
				if slot == 0 && clock != 2 { // saved state persists
					if err := ws[0].SaveState(fmt.Appendf(nil, "after clock %d", clock)); err != nil {
						t.Error(err)
					}
				}
				c.clock(ws[slot], clock+1)
			})
		}
		c.inc(ts[0], 1000)
		if err := ws[0].SaveState([]byte("never ended")); err != nil {
			t.Fatal(err)
		}
		c.pass(time.Second) // its ticks have arrived
		c.Net.Kill("worker:0")
		next := c.dial("worker:0", perdure.NoSlot)
		if next.Slot() != 0 || next.Now() != 3 {
			t.Fatalf("the successor is slot %d at clock %d, want slot 0 at clock 3", next.Slot(), next.Now())
		}
		if state, err := next.LoadState(c.ctx); err != nil || string(state) != "after clock 1" {
			t.Fatalf("the successor's LoadState gave %q, %v", state, err)
		}
		table := c.table(next)
		if got := c.get(table); got != 6 {
			t.Fatalf("the successor read %v, want 6", got)
		}
		c.inc(table, 1)
		both(2, func(slot int) { c.clock([]*worker.Client{next, ws[1]}[slot], 4) })
		if got := c.get(table); got != 7 {
			t.Fatalf("a clock later it read %v, want 7", got)
		}
	})
}

// TestFenced checks that a process which was partitioned while its slot was reassigned is notified by the servers, and
// can no longer act.
func TestFenced(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		old := c.dial("old", 0)
		ts := c.table(old)
		c.inc(ts, 1)
		c.clock(old, 1)
		// The next coordinator does not receive messages from the old process.
		c.Net.Cut("old", "coordinator", false)
		c.Kill("coordinator")
		c.start("coordinator")
		next := c.dial("next", 0)
		if next.Now() != 1 {
			t.Fatalf("the new process begins at clock %d, want 1", next.Now())
		}
		c.pass(time.Second)
		row := make([]float32, dim)
		_, clockErr := old.Clock(c.ctx)
		_, loadErr := old.LoadState(c.ctx)
		for what, err := range map[string]error{
			"Clock": clockErr, "LoadState": loadErr, "Get": ts.Get(c.ctx, 0, row), "Inc": ts.Inc(0, row),
			"Finish": old.Finish(c.ctx),
		} {
			if !errors.Is(err, perdure.ErrFenced) || strings.Contains(err.Error(), "\n") {
				t.Errorf("%s of the old process: %v; want one line of ErrFenced", what, err)
			}
		}
		if got := c.get(c.table(next)); got != 1 {
			t.Errorf("the new process read %v, want 1", got)
		}
	})
}

// TestCoordinatorAway checks that no process needs a killed coordinator as long as nothing else happens.
func TestCoordinatorAway(t *testing.T) {
	inCluster(t, "bsp", "checkpoint:3", 2, 10, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		c.Kill("coordinator")
		both(2, func(slot int) {
			for clock := range perdure.Clock(7) { // across cuts
				c.inc(ts[slot], 1)
				c.clock(ws[slot], clock+1)
			}
		})
		if got := c.get(ts[0]); got != 14 {
			t.Fatalf("read %v, want 14", got)
		}
		c.start("coordinator")
		both(2, func(slot int) {
			for clock := perdure.Clock(7); clock < 10; clock++ {
				c.clock(ws[slot], clock+1)
			}
			if err := ws[slot].Finish(c.ctx); err != nil {
				t.Error(err)
			}
		})
	})
}

// TestFinish checks that at the job's last clock Clock no longer advances, and that Finish returns when all slots have
// reached it. A process that joins later is notified that the job has ended.
func TestFinish(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:3", "asp"} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "checkpoint:5", 2, 4, func(c *cluster) {
				ws := c.workers()
				ts := c.tables(ws)
				if ws[0].End() != 4 || ws[0].Job().Clocks != 4 {
					t.Fatalf("the job's end is %d of %d", ws[0].End(), ws[0].Job().Clocks)
				}
				both(2, func(slot int) {
					for clock := range perdure.Clock(4) {
						c.inc(ts[slot], 1)
						c.clock(ws[slot], clock+1)
					}
					c.inc(ts[slot], 1000) // beyond the end, so it never counts
					c.clock(ws[slot], 4)
				})
				first := go1(func() error { return ws[0].Finish(c.ctx) })
				c.pass(time.Second)
				if len(first) != 0 {
					t.Fatal("Finish did not wait for the other slot")
				}
				if err := ws[1].Finish(c.ctx); err != nil {
					t.Fatal(err)
				}
				if err := <-first; err != nil {
					t.Fatal(err)
				}
				if got := c.observer(4); got != 8 {
					t.Errorf("the model is %v, want 8", got)
				}
				if _, err := c.tryDial("late", 0); !errors.Is(err, perdure.ErrDone) ||
					!errors.Is(err, perdure.ErrStopped) {
					t.Errorf("a process that came late was told: %v", err)
				}
			})
		})
	}
}

// TestEndJob checks that EndJob ends a job without a planned end, or earlier than planned, at the same clock for all
// slots. A slot that was ahead must not wait for updates that will never exist.
func TestEndJob(t *testing.T) {
	for _, recovery := range []string{"none", "checkpoint:3"} {
		for model, clocks := range map[string]perdure.Clock{"bsp": 100, "ssp:2": 0, "asp": 100} {
			t.Run(model+" "+recovery, func(t *testing.T) {
				inCluster(t, model, recovery, 3, clocks, func(c *cluster) {
					ws := c.workers()
					ts := c.tables(ws)
					both(3, func(slot int) { c.untilEnd(ws[slot], ts[slot], 5) })
					end := ws[0].End()
					if end < 5 || model != "asp" && end > 9 || ws[1].End() != end || model == "bsp" && end != 5 {
						t.Fatalf("the slots ended at clocks %d and %d", end, ws[1].End())
					}
					if got := c.observer(end); got != float32(3*end) {
						t.Errorf("the model of clock %d is %v", end, got)
					}
				})
			})
		}
	}
}

// TestProposeEnd checks that ProposeEnd stops every slot at the same clock, with exactly the updates of earlier clocks.
// Training continues from there until an end is confirmed.
func TestProposeEnd(t *testing.T) {
	for model, clocks := range map[string]perdure.Clock{"ssp:2": 0, "asp": 100} {
		inCluster(t, model, "checkpoint:3", 3, clocks, func(c *cluster) {
			ws := c.workers()
			ts := c.tables(ws)
			var ends []perdure.Clock
			both(3, func(slot int) {
				w := ws[slot]
				for again := true; again; {
					c.untilStop(w, ts[slot], func(clock perdure.Clock) bool {
						return slot == 0 && (len(ends) == 0 && clock == 5 || len(ends) == 1 && clock == ends[0]+3)
					}, w.ProposeEnd)
					at := w.Now()
					if err := w.SettleEnd(c.ctx, func(context.Context) (bool, error) {
						ends = append(ends, at)
						if got := c.observer(at); got != float32(3*at) {
							t.Errorf("%s: the model of clock %d is %v", model, at, got)
						}
						return len(ends) == 2, nil
					}); err != nil {
						c.Errorf("slot %d at clock %d: %v", slot, at, err)
					}
					again = w.End() == 0 || w.End() > at
				}
				if err := w.Finish(c.ctx); err != nil {
					c.Errorf("slot %d at the end: %v", slot, err)
				}
			})
			if len(ends) != 2 || ends[0] < 5 || ends[1] != ws[1].End() {
				t.Errorf("%s: ends at clocks %v were proposed, and the job ends at clock %d", model, ends, ws[1].End())
			}
		})
	}
}

// TestEndJobTooLate checks that EndJob cannot shorten a job in which another slot has already done the last clock. It
// reports this, and the slot continues to the planned end.
func TestEndJobTooLate(t *testing.T) {
	for _, model := range []string{"asp", "ssp:3"} {
		inCluster(t, model, "none", 2, 6, func(c *cluster) {
			ws := c.workers()
			ts := c.tables(ws)
			both(2, func(slot int) { c.untilEnd(ws[slot], ts[slot], 4) })
			if end := ws[0].End(); end != 6 || ws[0].Now() != end {
				t.Errorf("%s: slot 0 is at clock %d, and the job ends at clock %d", model, ws[0].Now(), end)
			}
		})
	}
}

// untilEnd trains as a program does; slot 0 requests the end at clock enough.
func (c *cluster) untilEnd(w *worker.Client, t *worker.Table, enough perdure.Clock) {
	c.untilStop(w, t, func(clock perdure.Clock) bool { return w.Slot() == 0 && clock == enough }, w.EndJob)
	if err := w.Finish(c.ctx); err != nil {
		c.Errorf("slot %d at the end: %v", w.Slot(), err)
	}
}

// untilStop trains until the job's end, which it requests when enough returns true.
func (c *cluster) untilStop(
	w *worker.Client, t *worker.Table, enough func(perdure.Clock) bool, end func(context.Context) error,
) {
	for clock := w.Now(); w.End() == 0 || clock < w.End(); {
		if enough(clock) {
			c.pass(20 * time.Millisecond) // evaluating the model takes time; the other slots continue
			if err := end(c.ctx); err != nil {
				c.Error(err)
				return
			}
			if e := w.End(); e > 0 && clock >= e {
				return
			}
		}
		if err := t.GetRun(c.ctx, 0, make([]float32, rows*dim)); err != nil {
			c.Errorf("slot %d at clock %d: %v", w.Slot(), clock, err)
			return
		}
		c.inc(t, 1)
		var err error
		if clock, err = w.Clock(c.ctx); err != nil {
			c.Errorf("slot %d at clock %d: %v", w.Slot(), clock, err)
			return
		}
	}
}

// TestDialRefused checks that a process that cannot join returns an error of one line with the reason.
func TestDialRefused(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.Process = "" }) // an observer needs no name
		patience := func(cfg *testcluster.DialConfig) { cfg.JoinTimeout = time.Second }
		for what, try := range map[string]struct {
			slot perdure.Slot
			with func(*testcluster.DialConfig)
			want error
		}{
			"no such slot":         {5, patience, perdure.ErrRefused},
			"a slot that is taken": {0, patience, nil},
			"all slots are taken":  {perdure.NoSlot, patience, nil},
			"no coordinator":       {0, func(cfg *testcluster.DialConfig) { cfg.Coordinator = "" }, perdure.ErrUsage},
			"no address of TCP":    {0, func(cfg *testcluster.DialConfig) { cfg.Network = nil }, nil}, // the default
			"nobody at the address": {0, func(cfg *testcluster.DialConfig) {
				patience(cfg)
				cfg.Coordinator = "nowhere/1"
			}, nil},
		} {
			_, err := c.tryDial("other", try.slot, try.with)
			if err == nil || strings.Contains(err.Error(), "\n") || try.want != nil && !errors.Is(err, try.want) {
				t.Errorf("%s: %v", what, err)
			}
		}
	})
}

// TestClosed checks that every call after Close returns ErrClosed, and that Close may be called again.
func TestClosed(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w)
		waiting := go1(func() error { return w.Finish(c.ctx) })
		for range 2 {
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
		}
		_, err := w.Clock(c.ctx)
		for what, err := range map[string]error{
			"a pending Finish": <-waiting, "Clock": err, "Get": table.Get(c.ctx, 0, make([]float32, dim)),
		} {
			if !errors.Is(err, transport.ErrClosed) {
				t.Errorf("%s after Close: %v", what, err)
			}
		}
		w.Report(worker.Report{}) // it is discarded
	})
}

// TestClocksOfReads checks the clocks that a read reports for its rows: a single clock if all shards answered at the
// same clock, and otherwise those of the oldest and the newest answer. A clock that only some slots have finished is
// visible under asp but not under bsp.
func TestClocksOfReads(t *testing.T) {
	for model, ahead := range map[string]perdure.Clock{"bsp": 0, "asp": 1} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "none", 2, 0, func(c *cluster) {
				ws := c.workers()
				ts := c.tables(ws)
				o := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
				table, values := c.table(o), make([]float32, rows*dim)
				says := func(from, to perdure.Clock) {
					t.Helper()
					gotFrom, gotTo, err := table.GetRunAt(c.ctx, 0, values)
					if err != nil || gotFrom != from || gotTo != to {
						t.Errorf("%s: rows of clocks %d to %d, %v; want %d to %d", model, gotFrom, gotTo, err, from, to)
					}
				}
				says(0, 0)
				for clock := range perdure.Clock(2) {
					both(2, func(slot int) {
						c.inc(ts[slot], 1)
						c.clock(ws[slot], clock+1)
					})
				}
				o.SetReadClock(2)
				says(2, 2)
				done := go1(func() error { // under bsp it waits for the other slot
					c.inc(ts[0], 1)
					_, err := ws[0].Clock(c.ctx)
					return err
				})
				c.pass(time.Second)
				table.Forget()
				says(2, 2+ahead)
				table.Forget()
				if err := table.GetRun(c.ctx, 0, values[:rows/2*dim]); err != nil {
					t.Fatal(err)
				}
				c.inc(ts[1], 1)
				c.clock(ws[1], 3)
				if err := <-done; err != nil {
					t.Fatal(err)
				}
				says(2, 3) // half of the rows are cached
				o.SetReadClock(3)
				says(3, 3)
			})
		})
	}
}
