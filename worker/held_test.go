package worker_test

import (
	"errors"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// TestHeld checks that the byte counts of stored updates match the stored updates, even after servers die. Nothing is
// stored once all updates are applied and, where required, in a checkpoint.
func TestHeld(t *testing.T) {
	for _, test := range []struct{ model, recovery string }{
		{"ssp:1", "checkpoint:4"}, // all processes roll back
		{"ssp:1", "resend:4"},     // a shard is restored
		{"bsp", "resend:4"},
		{"vap:60", "resend:4"},
		{"ssp:1", "chain:2"},
		{"ssp:1", "stateless"},
		{"bsp", "stateless"},
	} {
		t.Run(test.model+","+test.recovery, func(t *testing.T) {
			inCluster(t, test.model, test.recovery, 2, 40, func(c *cluster) {
				const last = 12
				ws := c.workers()
				ts := c.tables(ws)
				both(len(ws), func(slot int) {
					w, killed := ws[slot], false
					for clock := perdure.Clock(0); clock < last; {
						err := ts[slot].IncRun(0, make([]float32, rows*dim))
						if err != nil && !errors.Is(err, perdure.ErrRolledBack) {
							c.Error(err)
						}
						if clock == 6 && slot == 0 && !killed {
							killed = true
							c.Kill("server:0")
							c.start("server:0")
						}
						if clock, err = w.Clock(c.ctx); err != nil {
							c.Error(err)
							return
						}
						if counted, kept := w.Held(); counted != kept {
							c.Errorf("slot %d, clock %d: %v bytes are counted, and %v kept", slot, clock, counted, kept)
						}
						c.pass(10 * time.Millisecond)
					}
				})
				c.pass(5 * time.Second)
				for _, w := range ws {
					if counted, kept := w.Held(); w.Keeps() != 0 || counted != kept || counted != [3]int64{} {
						c.Errorf("slot %d keeps %d updates at the end: %v bytes are counted, and %v kept", w.Slot(),
							w.Keeps(), counted, kept)
					}
				}
			})
		})
	}
}
