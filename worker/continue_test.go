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

// goesOn is inChain for a job that goes on while a shard is out. Shard 0 is on both
// servers, shard 1 on server 1 only.
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

// counters returns what a slot's process says of itself, once it has said it anew.
func (c *chained) counters(slot perdure.Slot) perdure.WorkerCounters {
	<-time.After(2 * time.Second)
	return c.said(slot).Counters
}

// said returns a worker's newest status.
func (c *chained) said(slot perdure.Slot) protocol.WorkerStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status[slot]
}

// all reads all rows, of which each shard's must have one value.
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

// While a shard is out its rows are read as they are in the cache, up to the bound
// and no further, and clocks go on; other shards' rows are as fresh as ever. When it
// is back it gets all, in order and once, and reads are within their bounds.
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

// Whoever has queued as much as it may, as the job says or its own Config, waits, and
// goes on when the shard is back.
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

// What is in the update log, and kept to be shown, is queued, too: as much of it as of
// anything else.
func TestLoggedIsQueued(t *testing.T) {
	job := jobOf("asp", "stateless", 1, 1000)
	job.OnOutage, job.OutageBytes = perdure.OnOutage{Continue: true, Clocks: 1000}, 200_000
	inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w, func(spec *perdure.TableSpec) { // whose updates are not merged
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

// Rows that were never read are waited for, and so is a shard that is there and
// whose slots are not: only what is out is relaxed.
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
		if err := <-get(0); err != nil { // which was read when the table was created
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

// A slow shard is not out, nor is one that waits for other slots.
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

// A job that goes on refuses a table that cannot.
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

// Slots that go on without whatever is out for two milliseconds, while replicas die,
// lag and come back, lose nothing, and nothing counts twice. They read their own
// writes, unless these are not to show, and never less than before.
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

// Each update says the least MinClock of what the program read before, of whatever
// shard; where it read nothing in the clock, as before; and nothing if it never did.
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
			c.step(w, table, 1) // of MinClock 1
			settle()
			c.step(w, table, 1) // as before
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
			c.step(w, table, 1) // of MinClock 6
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

// basis is MinClock of what was read, and how many own clocks did not show in it.
type basis struct{ minClock, lag perdure.Clock }

// bases returns what a slot's updates to a shard say that they were computed from.
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
