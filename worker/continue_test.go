package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// goesOn is inChain for a job that continues while a shard is unavailable. Shard 0 is on both servers, shard 1 only on
// server 1.
func goesOn(t *testing.T, model string, slots int, job perdure.JobSpec, test func(c *chained)) {
	t.Helper()
	inChain(t, model, "chain:2", slots, 2, 2, transport.MemoryOptions{MaxQueued: 1000}, func(c *chained) {
		c.job.OnOutage, c.job.OutageRows, c.job.OutageBytes = job.OnOutage, job.OutageRows, job.OutageBytes
		c.setView(func(v *protocol.View) {
			c.setChain(&v.Shards[1], 1)
			v.Shards[1].Epoch++
		})
		test(c)
	})
}

// counters returns the counters of a slot's process from its next report.
func (c *chained) counters(slot perdure.Slot) perdure.WorkerCounters {
	<-time.After(2 * time.Second)
	return c.said(slot).Counters
}

// said returns a worker's last reported status.
func (c *chained) said(slot perdure.Slot) protocol.WorkerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status[slot]
}

// all reads all rows. The rows of each shard must have the same value.
func (c *chained) all(t *worker.Table) (shard0, shard1 float32) {
	c.Helper()
	got := make([]float32, rows*dim)
	if err := t.GetRun(c.ctx, 0, got); err != nil {
		c.Fatal(err)
	}
	first, _ := placement.Range(&perdure.TableSpec{Rows: rows}, 2, 1)
	mid := int(first) * dim
	for i, v := range got {
		if i < mid && v != got[0] || i >= mid && v != got[mid] {
			c.Fatalf("value %d is %v; value 0 is %v, and value %d %v", i, v, got[0], mid, got[mid])
		}
	}
	return got[0], got[mid]
}

// TestGoesOn checks reads while a shard is unavailable. Its rows are read from the cache up to the bound, clocks
// continue, and rows of other shards are as fresh as before. When the shard is available again, it receives all updates
// once and in order, and reads are within their bounds.
func TestGoesOn(t *testing.T) {
	for _, model := range []string{"asp", "ssp:2"} {
		for _, shown := range []perdure.OutageRows{"", perdure.RowsApply} {
			t.Run(fmt.Sprintf("%s,%s", model, shown), func(t *testing.T) {
				job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 10}, OutageRows: shown}
				goesOn(t, model, 1, job, func(c *chained) { c.goOn(shown) })
			})
		}
	}
}

func (c *chained) goOn(shown perdure.OutageRows) {
	w := c.dial(0)
	table := c.table(w)
	for range 3 {
		c.all(table)
		c.step(w, table, 1)
	}
	last := perdure.Clock(2 + 10) // rows were read at clock 2
	if s := c.job.Consistency; s.Bounded() {
		c.all(table)
		last = 3 + 10 + s.Staleness // rows of MinClock 3
		if err := w.Settle(c.ctx); err != nil {
			c.Fatal(err)
		}
		table.Forget()
		c.all(table)
	}
	c.Net.Cut("worker:0", "server:0", false)
	if c.job.Consistency.Bounded() {
		c.step(w, table, 1) // it will not be acknowledged
		<-time.After(time.Second)
	}
	start, first := time.Now(), float32(0)
	for clock := w.Now(); clock <= last; clock = w.Now() {
		out, there := c.all(table)
		if first == 0 {
			first = out
		}
		if want := float32(clock); there != want || shown == perdure.RowsApply && out != want ||
			shown != perdure.RowsApply && out != first {
			c.Fatalf("at clock %d the rows of the shard that is out are %v, which were %v, and of the other %v", clock,
				out, first, there)
		}
		c.step(w, table, 1)
	}
	if took := time.Since(start); took > time.Second {
		c.Errorf("it went on after %v", took)
	}
	waits := go1(func() error { return table.Get(c.ctx, 0, make([]float32, dim)) })
	said := c.counters(0)
	if len(waits) != 0 {
		c.Fatal("a row was read that is too old")
	}
	if said.OutageClocks == 0 || said.StaleRows < rows/2 || said.QueuedBytes == 0 {
		c.Errorf("it says of the outage only %+v", said)
	}
	if now := c.said(0).Outage; now == nil || !slices.Equal(now.Shards, []perdure.ShardID{0}) || now.Seconds < 0.5 ||
		now.Bytes == 0 {
		c.Errorf("while shard 0 is out it says %+v", now)
	}
	c.Net.Heal("worker:0", "server:0")
	if err := <-waits; err != nil {
		c.Fatal(err)
	}
	c.read(table, float32(last+1))
	after := c.counters(0)
	if now := c.said(0).Outage; now != nil {
		c.Errorf("when it is back it says %+v", now)
	}
	if after.OutageNs < int64(time.Second) || after.StaleRows != said.StaleRows {
		c.Errorf("it says that it waited for %v, and read %d rows that were stale, before %d",
			time.Duration(after.OutageNs), after.StaleRows, said.StaleRows)
	}
	c.with(0, func(s *chainServer) {
		if s.again != 0 || !slices.IsSorted(s.clocks) {
			c.Errorf("the head got %v, %d of them twice", s.clocks, s.again)
		}
	})
}

// TestQueueIsBounded checks that a worker whose queue has reached the limit, from the job or from its own Config, waits
// until the shard is available again.
func TestQueueIsBounded(t *testing.T) {
	queueIsBounded(t, 20_000, 0)
	queueIsBounded(t, 1<<30, 20_000)
}

func queueIsBounded(t *testing.T, ofJob, own int64) {
	job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 1000}, OutageBytes: ofJob}
	goesOn(t, "asp", 1, job, func(c *chained) {
		w := c.dial(0, func(cfg *testcluster.DialConfig) { cfg.OutageBytes = own })
		table := c.table(w)
		c.all(table)
		c.Net.Cut("worker:0", "server:0", false)
		c.step(w, table, 1)
		<-time.After(time.Second)
		brief := func() (context.Context, context.CancelFunc) { return context.WithTimeout(c.ctx, time.Second) }
		clocks := 1
		for ; clocks < 100; clocks++ {
			if err := table.IncRun(0, slices.Repeat([]float32{1}, rows*dim)); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := brief()
			_, err := w.Clock(ctx)
			cancel()
			if errors.Is(err, context.DeadlineExceeded) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if q := c.counters(0).QueuedBytes; q < 20_000 || q > 22_000 || clocks < 5 {
			t.Errorf("%d bytes are queued after %d clocks", q, clocks)
		}
		c.Net.Heal("worker:0", "server:0")
		if _, err := w.Clock(c.ctx); err != nil {
			t.Fatal(err)
		}
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.read(table, float32(clocks+1))
	})
}

// TestLoggedIsQueued checks that updates in the update log that are kept for reads count towards the queue limit, like
// all other updates.
func TestLoggedIsQueued(t *testing.T) {
	job := jobOf("asp", "stateless", 1, 1000)
	job.OnOutage, job.OutageBytes = perdure.OnOutage{Continue: true, Clocks: 1000}, 200_000
	inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w, func(spec *perdure.TableSpec) { // its updates are not merged
			spec.Dim, spec.Rule = 300, perdure.Rule{Kind: perdure.RuleSGD, Rate: 1, Schedule: perdure.ScheduleSqrt}
		})
		step := func() error {
			if err := table.IncRun(0, make([]float32, rows*300)); err != nil {
				return err
			}
			_, err := w.Clock(c.within(time.Second))
			return err
		}
		if err := step(); err != nil {
			t.Fatal(err)
		}
		c.Kill("server:0")
		c.Kill("server:1")
		c.pass(time.Second)
		err, clocks := error(nil), 0
		for ; err == nil && clocks < 100; clocks++ {
			err = step()
		}
		if !errors.Is(err, context.DeadlineExceeded) || clocks < 10 || clocks > 20 {
			t.Errorf("it ends with %v after %d clocks of 13 kB", err, clocks)
		}
	})
}

// TestOnlyWhatIsOut checks that only rows of unavailable shards are relaxed. Reads wait for rows that were never read,
// and for an available shard that lacks updates of other slots.
func TestOnlyWhatIsOut(t *testing.T) {
	job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 100}, OutageRows: perdure.RowsApply}
	goesOn(t, "ssp:2", 2, job, func(c *chained) {
		w, slow := c.dial(0), c.dial(1)
		table, other := c.table(w), c.table(slow)
		c.Net.Cut("worker:0", "server:0", false)
		for range 3 {
			c.step(w, table, 1)
		}
		<-time.After(time.Second)
		get := func(row perdure.RowID) <-chan error {
			return go1(func() error { return table.Get(c.ctx, row, make([]float32, dim)) })
		}
		if err := <-get(0); err != nil { // it was read when the table was created
			t.Fatal(err)
		}
		never, bounded := get(1), get(rows-1)
		<-time.After(time.Second)
		if len(never) != 0 || len(bounded) != 0 {
			t.Fatalf("%d of a row that was never read, %d of one whose shard is there", len(never), len(bounded))
		}
		c.step(slow, other, 1)
		if err := <-bounded; err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		if len(never) != 0 {
			t.Fatal("a row was read that no server has shown")
		}
		c.Net.Heal("worker:0", "server:0")
		if err := <-never; err != nil {
			t.Fatal(err)
		}
	})
}

// TestSlowIsNotOut checks that a slow shard is not unavailable, nor is a shard that waits for other slots.
func TestSlowIsNotOut(t *testing.T) {
	job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 100}}
	goesOn(t, "ssp:1", 2, job, func(c *chained) {
		w, slow := c.dial(0), c.dial(1)
		table, other := c.table(w), c.table(slow)
		c.all(table)
		c.step(w, table, 1)
		c.step(w, table, 1)
		waits := go1(func() error { return table.Get(c.ctx, 0, make([]float32, dim)) })
		<-time.After(5 * time.Second)
		if len(waits) != 0 {
			t.Fatal("a row was read that is too old")
		}
		c.step(slow, other, 1)
		if err := <-waits; err != nil {
			t.Fatal(err)
		}
		if said := c.counters(0); said.StaleRows != 0 || said.OutageClocks != 0 {
			t.Errorf("it says %+v", said)
		}
	})
}

// TestNoStrictTable checks that a job that continues during outages rejects a table whose model does not allow that.
func TestNoStrictTable(t *testing.T) {
	job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 100}}
	goesOn(t, "asp", 1, job, func(c *chained) {
		_, err := c.dial(0).Table(c.ctx,
			perdure.TableSpec{Name: "t", Rows: 1, Dim: 1, Consistency: perdure.Consistency{Kind: perdure.BSP}})
		if !errors.Is(err, perdure.ErrUsage) {
			t.Error(err)
		}
	})
}

// TestContinueStorm runs slots that continue without any shard that is unavailable for two milliseconds, while replicas
// die, lag and return. Nothing is lost or counted twice. Slots read their own writes, unless the job hides them, and
// values never decrease.
func TestContinueStorm(t *testing.T) {
	stale := int64(0)
	for _, model := range []string{"ssp:2", "asp"} {
		for _, shown := range []perdure.OutageRows{perdure.RowsFrozen, perdure.RowsApply} {
			for round := range uint64(2) {
				stale += continueStorm(t, model, shown, *seed+round)
			}
		}
	}
	if stale == 0 {
		t.Error("no read was relaxed")
	}
}

func continueStorm(t *testing.T, model string, shown perdure.OutageRows, seed uint64) (stale int64) {
	inChain(t, model, "chain:3", dim, 3, 4, transport.MemoryOptions{Breaks: 0.002}, func(c *chained) {
		const clocks = 40
		c.job.OnOutage, c.job.OutageRows = perdure.OnOutage{Continue: true, Clocks: 5}, shown
		rng := rand.New(rand.NewPCG(seed, 1))
		over := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() { c.disturb(rng, over) })
		ws := make([]*worker.Client, dim)
		for slot := range ws {
			ws[slot] = c.dial(perdure.Slot(slot),
				func(cfg *testcluster.DialConfig) { cfg.OutageAfter = 2 * time.Millisecond })
		}
		both(dim, func(slot int) {
			table, err := ws[slot].Table(c.ctx,
				perdure.TableSpec{Name: "t", Rows: rows, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}})
			if err == nil {
				err = c.iterate(ws[slot], table, slot, clocks, rand.New(rand.NewPCG(seed, uint64(10+slot))))
			}
			if err != nil {
				t.Errorf("-worker.seed=%d, %s, %s: slot %d: %v", seed, model, shown, slot, err)
			}
		})
		close(over)
		wg.Wait()
		for _, w := range ws {
			c.read(c.table(w), clocks)
		}
		for slot := range ws {
			stale += c.counters(perdure.Slot(slot)).StaleRows
		}
	})
	return stale
}

// TestSaysWhatItRead checks the basis that each update carries: the smallest MinClock, over all shards, of the rows
// that the program read before it. If the program read nothing in the clock, the basis stays the same. It is absent if
// the program never read.
func TestSaysWhatItRead(t *testing.T) {
	for _, how := range []perdure.StaleScale{perdure.ScaleInverse, perdure.ScaleNone} {
		job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 100}, StaleScale: how}
		goesOn(t, "asp", 1, job, func(c *chained) {
			c.job.StaleScale = how
			w := c.dial(0)
			table := c.table(w)
			settle := func() {
				if err := w.Settle(c.ctx); err != nil {
					t.Fatal(err)
				}
			}
			c.step(w, table, 1) // nothing read
			settle()
			c.all(table)
			c.step(w, table, 1) // read at MinClock 1
			settle()
			c.step(w, table, 1) // unchanged
			settle()
			c.all(table)
			c.Net.Cut("worker:0", "server:0", false)
			c.step(w, table, 1)
			for range 2 { // shard 0 stays at 3
				c.all(table)
				c.step(w, table, 1)
			}
			<-time.After(time.Second)
			c.Net.Heal("worker:0", "server:0")
			settle()
			c.all(table)
			c.step(w, table, 1) // read at MinClock 6
			settle()
			none := basis{wire.NoBasis, 0}
			want := []basis{none, {1, 0}, {1, 1}, {3, 0}, {3, 0}, {3, 1}, {6, 0}}
			if how == perdure.ScaleNone {
				want = slices.Repeat([]basis{none}, len(want))
			}
			for shard := range 2 {
				if got := c.bases(shard); !slices.Equal(got, want) {
					t.Errorf("%s: the updates to shard %d say %v, want %v", how, shard, got, want)
				}
			}
		})
	}
}

// basis is the MinClock of the rows read, and the number of own clocks that they did not contain.
type basis struct{ minClock, lag perdure.Clock }

// bases returns the basis of each of a slot's updates to a shard.
func (c *chained) bases(shard int) (all []basis) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, f := range c.servers[1].replicas[shard].log {
		if f.Kind == wire.KindUpdate && f.Parts > 0 {
			b := wire.ReadBlocks(append(slices.Clone(f.Payload), f.Body...))
			for b.Next() {
			}
			all = append(all, basis{b.Basis, b.Lag})
		}
	}
	return all
}
