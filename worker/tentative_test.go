package worker_test

import (
	"context"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// What left early of a clock that a tentative end broke off is not in the update of that clock when it is done again.
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
			step(0, 100) // leaves
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

// settleEnd has all slots settle a tentative end, whose model misses the goal. Then the job must end at the given
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
