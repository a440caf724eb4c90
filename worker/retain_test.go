package worker_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
)

// TestCondenses checks that applied updates that wait for a slow checkpoint are merged. Any number of clocks then uses
// the memory of a few, Clock never waits, and a restored shard that receives them again contains each once. If separate
// clocks are required, Clock waits for the checkpoint.
func TestCondenses(t *testing.T) {
	const last, retain = 400, 20_000
	for model, condensed := range map[string]bool{"asp": true, "essp:3": true, "bsp": false, "vap:9000": false} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "resend:1000", 1, 1000, func(c *cluster) {
				written := make(chan struct{})
				end := sync.OnceFunc(func() { close(written) })
				defer end()
				restart := func() {
					for i := range c.job.Servers {
						c.Kill(fmt.Sprint("server:", i))
						c.start(fmt.Sprint("server:", i))
					}
				}
				c.unwritten = written
				restart()
				w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.RetainBytes = retain })
				table := c.table(w)
				for clock := range perdure.Clock(last) {
					if v := c.get(table); v != float32(clock) {
						c.Fatalf("at clock %d the rows are %v", clock, v)
					}
					c.inc(table, 1)
					if now, err := w.Clock(c.within(5 * time.Second)); now != clock+1 {
						if condensed || !errors.Is(err, context.DeadlineExceeded) {
							c.Fatalf("clock %d ends as %d: %v", clock, now, err)
						}
						return // it waits for a checkpoint
					}
					c.pass(time.Millisecond)
					if counted, kept := w.Held(); counted != kept || counted[1] > retain+1000 {
						c.Fatalf("clock %d: %v bytes are counted, and %v kept; %d may be, and one clock more", clock,
							counted, kept, retain)
					}
				}
				if n := w.Keeps(); !condensed || n < 4 || n > last || w.Named() == 0 {
					c.Errorf("it has not waited, and keeps %d updates of %d clocks; the last cut is that of clock %d",
						n, last, w.Named())
				}
				c.unwritten = nil
				for i := range c.job.Servers { // no server has written anything
					c.Process(fmt.Sprint("server:", i)).Kill()
				}
				end()
				restart()
				c.inc(table, 1)
				c.clock(w, last+1)
				if err := w.Settle(c.ctx); err != nil {
					c.Fatal(err)
				}
				table.Forget()
				if v := c.get(table); v != last+1 {
					c.Errorf("in the end the rows are %v, want %d", v, last+1)
				}
			})
		})
	}
}
