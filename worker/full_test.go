package worker_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestFrozenCoordinator freezes a coordinator, so that it accepts nothing and its send queue fills up. No call may wait
// for it: cached rows are read immediately, whatever else the program has to report. When the coordinator resumes, it
// receives the missing reports on a new connection. (A wait under the client's lock would stop virtual time, and the
// test would hang.)
func TestFrozenCoordinator(t *testing.T) {
	const few = 8 << 10 // max queued bytes: about forty reports
	inClusterOf(t, transport.MemoryOptions{MaxQueued: few}, nil, "ssp:2", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w)
		c.get(table)
		c.Net.Cut("worker:0", testcluster.CoordinatorHost, false)
		for range 400 {
			w.Report(worker.Report{Clock: 1})
		}
		more := perdure.TableSpec{Name: "more", Rows: rows, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
		made := go1(func() error {
			_, err := w.Table(c.ctx, more)
			return err
		})
		c.pass(time.Millisecond)
		start := time.Now()
		if c.get(table); time.Since(start) > 0 {
			t.Errorf("a row that is cached was read after %v", time.Since(start))
		}
		c.Net.Heal("worker:0", testcluster.CoordinatorHost)
		if err := <-made; err != nil {
			t.Fatal(err)
		}
		c.clock(w, 1)
		if err := w.Leave(); err != nil {
			t.Fatal(err)
		}
	})
}
