package worker_test

import (
	"testing"

	"github.com/perdure/perdure"
)

// TestClocksOverlap checks that concurrent calls of Clock end a clock only once, in any order, and that none of them
// fails or hangs.
func TestClocksOverlap(t *testing.T) {
	for _, model := range []string{"asp", "bsp", "vap:3"} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "checkpoint:4", 1, 1000, func(c *cluster) {
				const calls = 20
				w := c.dial("worker:0", 0)
				table := c.table(w)
				both(2, func(int) {
					for range calls {
						if err := table.IncRun(0, make([]float32, rows*dim)); err != nil {
							c.Error(err)
						}
						if _, err := w.Clock(c.ctx); err != nil {
							c.Error(err)
						}
					}
				})
				if err := w.Settle(c.ctx); err != nil {
					c.Error(err)
				}
				if now := w.Now(); now < calls || now > 2*perdure.Clock(calls) {
					c.Errorf("%d calls in each of two goroutines end at clock %d", calls, now)
				}
			})
		})
	}
}
