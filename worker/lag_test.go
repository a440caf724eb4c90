package worker_test

import (
	"context"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// lateLog is a log whose readers take some time for each record.
type lateLog struct {
	updatelog.Log
	each *atomic.Int64 // nanoseconds
}

func (l *lateLog) Read(
	ctx context.Context, shard int, from updatelog.Position, deliver func(updatelog.Entry) error,
	caughtUp func(updatelog.Position),
) error {
	return l.Log.Read(ctx, shard, from, func(e updatelog.Entry) error {
		if each := l.each.Load(); each > 0 {
			<-time.After(time.Duration(each))
		}
		return deliver(e)
	}, caughtUp)
}

// onlooker creates an observer. look returns the smallest and the largest of all values.
func (c *cluster) onlooker(name string) (look func() (least, most float32), w *worker.Client) {
	c.Helper()
	w = c.dial(name, perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
	table := c.table(w)
	return func() (float32, float32) {
		c.Helper()
		w.SetReadClock(0)
		got := make([]float32, rows*dim)
		if err := table.GetRun(c.ctx, 0, got); err != nil {
			c.Fatal(err)
		}
		return slices.Min(got), slices.Max(got)
	}, w
}

// inOutage runs a job in which a server is unavailable for a while and workers continue. It calls test after the server
// has returned; all is the expected final value.
func inOutage(t *testing.T, recovery string, test func(c *cluster, each *atomic.Int64, all float32)) {
	t.Helper()
	job := jobOf("asp", recovery, 3, 1000)
	job.OnOutage, job.OutageRows = perdure.OnOutage{Continue: true, Clocks: 1000}, perdure.RowsApply
	inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) {
		const before, alone = 3, 100
		var each atomic.Int64
		c.killAll()
		c.slow = func(l updatelog.Log) updatelog.Log { return &lateLog{l, &each} }
		c.startAll()
		ws := c.workers()
		ts := c.tables(ws)
		work := func(clocks int) {
			both(len(ws), func(slot int) {
				for range clocks {
					if err := ts[slot].GetRun(c.ctx, 0, make([]float32, rows*dim)); err != nil {
						c.Error(err)
					}
					c.inc(ts[slot], 1)
					c.clock(ws[slot], ws[slot].Now()+1)
					c.pass(10 * time.Millisecond)
				}
			})
		}
		work(before)
		for _, w := range ws {
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
		}
		c.Kill("server:0")
		c.pass(time.Second)
		work(alone)
		each.Store(int64(20 * time.Millisecond))
		c.start("server:0")
		test(c, &each, float32(len(ws)*(before+alone)))
	})
}

// TestAtRest checks that a program that evaluates a model after an outage waits until the unavailable shard has applied
// the updates sent meanwhile. Before that, shards are at different clocks. The wait is bounded.
func TestAtRest(t *testing.T) {
	for _, recovery := range []string{"stateless", "resend:1000"} {
		t.Run(recovery, func(t *testing.T) {
			inOutage(t, recovery, func(c *cluster, _ *atomic.Int64, all float32) {
				hasty, _ := c.onlooker("hasty")
				patient, o := c.onlooker("patient")
				least, most := hasty()
				if recovery == "stateless" && least == most {
					t.Errorf("a program that does not wait sees %v everywhere: nothing is tested", least)
				}
				rest, err := o.AwaitCaughtUp(c.ctx, 2*time.Second)
				opens := o.Opens()
				if least, most = patient(); err != nil || !rest || least != all || most != all || o.Opens() != opens {
					t.Errorf("at rest: %v, %v; values from %v to %v, want %v", rest, err, least, most, all)
				}
				begin := time.Now()
				if rest, err := o.AwaitCaughtUp(c.ctx, 2*time.Second); !rest || err != nil ||
					time.Since(begin) > time.Second/10 {
					t.Errorf("still at rest: %v, %v, after %v", rest, err, time.Since(begin))
				}
				c.Kill("server:1")
				c.start("server:1")
				c.pass(time.Second)
				if least, most = patient(); least != all || most != all || o.Opens() <= opens {
					t.Errorf("a server was away: %v to %v; shards were opened %d times, before %d", least, most,
						o.Opens(), opens)
				}
			})
		})
	}
	t.Run("long", func(t *testing.T) {
		inOutage(t, "stateless", func(c *cluster, each *atomic.Int64, all float32) {
			patient, o := c.onlooker("patient")
			_, _ = patient() // once, so that all shards are open
			each.Store(int64(2 * time.Second))
			begin := time.Now()
			rest, err := o.AwaitCaughtUp(c.ctx, 2*time.Second)
			if took := time.Since(begin); rest || err != nil || took < 2*time.Second || took > 3*time.Second {
				t.Errorf("at rest: %v, %v, after %v", rest, err, took)
			}
			if least, _ := patient(); least == all {
				t.Error("all was applied in time: nothing is tested")
			}
		})
	})
}
