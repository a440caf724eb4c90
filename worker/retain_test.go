package worker_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// What is applied, and kept until it is in a checkpoint, is merged once it is a part of what
// may be kept: very many clocks take the memory of a few, no cut is asked for before its time,
// and a restored shard that gets them again has each of them once.
func TestCondenses(t *testing.T) {
	const last, retain = 400, 20_000
	for model, condensed := range map[string]bool{"asp": true, "essp:3": true, "bsp": false, "vap:9000": false} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "resend:1000", 1, 1000, func(c *cluster) {
				w := c.dial("worker:0", 0, func(cfg *worker.Config) { cfg.RetainBytes = retain })
				table := c.table(w)
				most, cut := int64(0), false
				for clock := range perdure.Clock(last) {
					if v := c.get(table); v != float32(clock) {
						t.Fatalf("at clock %d the rows are %v", clock, v)
					}
					c.inc(table, 1)
					c.clock(w, clock+1)
					c.pass(time.Millisecond)
					counted, kept := w.Held()
					if counted != kept {
						t.Fatalf("clock %d: %v bytes are counted, and %v kept", clock, counted, kept)
					}
					most, cut = max(most, counted[1]), cut || w.Named() > 0
				}
				if condensed != (most < retain/2) || condensed == cut {
					t.Errorf("it kept %d bytes of %d, in %d updates; was a cut asked for: %v", most, retain, w.Keeps(), cut)
				}
				if !condensed {
					return
				}
				if n := w.Keeps(); n < 4 || n > last {
					t.Errorf("it keeps %d updates of %d clocks", n, last)
				}
				for i := range c.job.Servers {
					c.kill(fmt.Sprint("server:", i))
					c.start(fmt.Sprint("server:", i))
				}
				c.inc(table, 1)
				c.clock(w, last+1)
				if err := w.Settle(c.ctx); err != nil {
					t.Fatal(err)
				}
				table.Forget()
				if v := c.get(table); v != last+1 {
					t.Errorf("in the end the rows are %v, want %d", v, last+1)
				}
			})
		})
	}
}
