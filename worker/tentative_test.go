package worker_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/proc/coordinator"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestRollBackAtTentativeEnd checks that a rollback cancels the evaluation of the model at a tentative end. Otherwise
// the evaluation would wait for updates that its own slot must repeat.
func TestRollBackAtTentativeEnd(t *testing.T) {
	inCluster(t, "ssp:2", "checkpoint:3", 2, 30, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		o := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
		ot := c.table(o)
		evals := 0
		both(2, func(slot int) {
			w := ws[slot]
			for again := true; again; {
				enough := func(clock perdure.Clock) bool { return slot == 0 && clock == 5 }
				c.untilStop(w, ts[slot], enough, w.ProposeEnd)
				at := w.Now()
				err := w.SettleEnd(c.ctx, func(ctx context.Context) (bool, error) {
					if evals++; evals == 1 {
						c.pass(time.Second) // the other slot reaches this clock, too
						c.Kill("server:0")
						c.start("server:0")
						c.pass(5 * time.Second)
					}
					o.SetReadClock(at)
					return true, ot.GetRun(ctx, 0, make([]float32, rows*dim))
				})
				if errors.Is(err, perdure.ErrRolledBack) {
					if _, err = w.Clock(c.ctx); err == nil {
						continue
					}
				}
				if err != nil {
					c.Errorf("slot %d at clock %d: %v", slot, at, err)
				}
				again = w.End() > at
			}
			if err := w.Finish(c.ctx); err != nil {
				c.Errorf("slot %d at the end: %v", slot, err)
			}
		})
	})
}

// TestTentativeEndInClock checks that deltas which were sent early, in a clock that a tentative end interrupted, are
// not in the update of that clock when it is repeated.
func TestTentativeEndInClock(t *testing.T) {
	for _, recovery := range []string{"none", "chain:2", "checkpoint:3", "stateless"} {
		inCluster(t, "asp", recovery, 2, 30, func(c *cluster) {
			ws := c.workers()
			ts := c.tables(ws)
			step := func(slot int, parts ...float32) {
				for _, v := range parts {
					c.inc(ts[slot], v)
					if err := ts[slot].Flush(); err != nil {
						t.Error(err)
					}
				}
			}
			for clock := range perdure.Clock(3) {
				for slot := range ws {
					step(slot, 1)
					c.clock(ws[slot], clock+1)
				}
			}
			step(0, 100) // large enough to be sent immediately
			c.pass(time.Second)
			if err := ws[1].ProposeEnd(c.ctx); err != nil {
				t.Fatal(err)
			}
			c.clock(ws[0], 3)
			c.settleEnd(ws, 30)
			for slot := range ws {
				step(slot, 1)
				c.clock(ws[slot], 4)
				if err := ws[slot].Settle(c.within(20 * time.Second)); err != nil {
					t.Errorf("%s: slot %d: %v", recovery, slot, err)
				}
			}
			c.pass(time.Second)
			if got := c.observer(4); got != 8 {
				t.Errorf("%s: after 4 clocks of 2 slots the model is %v, want 8", recovery, got)
			}
		})
	}
}

// settleEnd makes all slots settle a tentative end whose model misses the goal. The job must then end at the given
// clock.
func (c *cluster) settleEnd(ws []*worker.Client, end perdure.Clock) {
	both(len(ws), func(slot int) {
		err := ws[slot].SettleEnd(c.ctx, func(context.Context) (bool, error) {
			c.pass(time.Second)
			return false, nil
		})
		if got := ws[slot].End(); err != nil || got != end {
			c.Errorf("slot %d at clock %d: the job ends at clock %d, want %d: %v", slot, ws[slot].Now(), got, end, err)
		}
	})
}

// TestJoinAtTentativeEnd checks that a slot which joins the job after the clock of a tentative end waits there, and
// trains if training continues.
func TestJoinAtTentativeEnd(t *testing.T) {
	inCluster(t, "asp", "none", 2, 30, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		for clock := range perdure.Clock(3) {
			for slot := range ws {
				c.inc(ts[slot], 1)
				c.clock(ws[slot], clock+1)
			}
		}
		err := c.Leader().Ask(c.ctx, func(core *membership.Core, _ coordinator.Latest) {
			if err := core.Scale(membership.Change{Add: 1}); err != nil {
				t.Error(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
		c.pass(time.Second)
		if err := ws[0].ProposeEnd(c.ctx); err != nil {
			t.Fatal(err)
		}
		ws = append(ws, c.dial("worker:2", 2))
		if end, now := ws[2].End(), ws[2].Now(); end != 3 || now != 4 {
			t.Fatalf("a slot joins at clock %d, and the tentative end is %d; want 4 and 3", now, end)
		}
		c.settleEnd(ws, 30)
	})
}

// TestEndJobAtTentativeEnd checks that EndJob at a tentative end, which may be revoked, makes that end final.
func TestEndJobAtTentativeEnd(t *testing.T) {
	inCluster(t, "asp", "none", 2, 30, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		for slot, clocks := range []perdure.Clock{3, 6} {
			for clock := range clocks {
				c.inc(ts[slot], 1)
				c.clock(ws[slot], clock+1)
			}
		}
		if err := ws[0].ProposeEnd(c.ctx); err != nil {
			t.Fatal(err)
		}
		if err := ws[0].EndJob(c.ctx); err != nil {
			t.Fatal(err)
		}
		for clock := perdure.Clock(3); clock < 6; clock++ {
			c.inc(ts[0], 1)
			c.clock(ws[0], clock+1)
		}
		c.settleEnd(ws, 6)
		both(2, func(slot int) {
			if err := ws[slot].Finish(c.ctx); err != nil {
				t.Error(err)
			}
		})
	})
}
