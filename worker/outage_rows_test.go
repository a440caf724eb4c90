package worker_test

import (
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// TestOutAgain checks that reads of a shard do not block if it becomes unavailable again before its rows were read
// again. They return the rows from before the first outage.
func TestOutAgain(t *testing.T) {
	job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 100}, OutageRows: perdure.RowsFrozen}
	goesOn(t, "asp", 1, job, func(c *chained) {
		c.job.StaleScale = perdure.ScaleInverse
		w := c.dial(0)
		table := c.table(w)
		c.step(w, table, 1)
		c.all(table)
		goesOut := func() {
			c.Net.Cut("worker:0", "server:0", false)
			c.step(w, table, 1)
			<-time.After(2 * time.Second)
		}
		isBack := func() {
			c.Net.Heal("worker:0", "server:0")
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
		}
		goesOut() // two clocks are pending, and rows of shard 0 include the deltas of the second
		for clock := range 5 {
			if out, there := c.all(table); out != 2 || there != float32(2+clock) {
				t.Fatalf("rows of the shard that is out are %v, and others %v", out, there)
			}
			c.step(w, table, 1)
		}
		isBack()
		goesOut() // its rows were not read, and the deltas did not show in them
		for clock := range 5 {
			if out, there := c.all(table); out != 2 || there != float32(8+clock) {
				t.Fatalf("when it is out again its rows are %v, and others %v", out, there)
			}
			c.step(w, table, 1)
		}
		isBack()
		c.read(table, 13)
		if all := c.bases(0); all[12].lag != 10 {
			t.Errorf("the update of clock 12 says that %d clocks did not show; they did from clock 2 on", all[12].lag)
		}
	})
}

// TestShowsAgain checks that deltas Inc'd during an outage are visible as soon as the shard is available, even in rows
// already read in the same clock.
func TestShowsAgain(t *testing.T) {
	for _, model := range []string{"asp", "ssp:3"} {
		job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 100}, OutageRows: perdure.RowsFrozen}
		goesOn(t, model, 1, job, func(c *chained) {
			w := c.dial(0)
			table := c.table(w)
			c.all(table)
			c.Net.Cut("worker:0", "server:0", false)
			c.setView(func(v *protocol.View) { v.Shards[0].Epoch++ }) // its new incarnation does not answer
			<-time.After(time.Second)
			if err := table.IncRun(0, slices.Repeat([]float32{1}, rows*dim)); err != nil {
				t.Fatal(err)
			}
			if out, there := c.all(table); out != 0 || there != 1 {
				t.Fatalf("rows of the shard that is out are %v, and others %v", out, there)
			}
			c.Net.Heal("worker:0", "server:0")
			<-time.After(time.Second)
			if out, there := c.all(table); out != 1 || there != 1 {
				t.Errorf("%s: when it is back its rows are %v, and others %v", model, out, there)
			}
		})
	}
}

// TestBusyIsNotOut checks that a silent shard with an intact connection is given more time than one without a
// connection, and more still if its earlier answers took long.
func TestBusyIsNotOut(t *testing.T) {
	job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 100}, OutageRows: perdure.RowsApply}
	goesOn(t, "asp", 1, job, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.all(table)
		silent := func(d time.Duration, want bool) {
			t.Helper()
			c.Net.Cut("worker:0", "server:0", false)
			c.step(w, table, 1)
			read := go1(func() error { return table.Get(c.ctx, 0, make([]float32, dim)) })
			<-time.After(d)
			if out := len(read) > 0; out != want {
				t.Errorf("after %v of silence it is out: %v, want %v", d, out, want)
			}
			c.Net.Heal("worker:0", "server:0")
			if err := <-read; err != nil {
				t.Fatal(err)
			}
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
		}
		silent(700*time.Millisecond, false)
		silent(2*time.Second, false) // four times the duration of the last answer
		silent(12*time.Second, true) // no answer takes this long
		for range 100 {
			c.all(table)
			c.step(w, table, 1)
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
		}
		silent(2*time.Second, true)
		c.kill(0)
		c.step(w, table, 1)
		read := go1(func() error { return table.Get(c.ctx, 0, make([]float32, dim)) })
		<-time.After(400 * time.Millisecond)
		if len(read) == 0 {
			t.Error("its connection is broken, and it is not out")
		}
		c.rechain(1)
		if err := <-read; err != nil {
			t.Fatal(err)
		}
	})
}

// TestAverage checks that the updates which disconnected slots compute from the same rows count as their mean, while
// sums remain sums. Each slot's reads must include its own updates with the weight that servers will apply.
func TestAverage(t *testing.T) {
	for _, shown := range []perdure.OutageRows{perdure.RowsApply, perdure.RowsFrozen} {
		t.Run(string(shown), func(t *testing.T) { averages(t, shown) })
	}
}

func averages(t *testing.T, shown perdure.OutageRows) {
	job := jobOf("asp", "stateless", 2, 1000)
	job.OnOutage = perdure.OnOutage{Continue: true, Clocks: 1000}
	job.OutageRows, job.StaleScale = shown, perdure.ScaleAverage
	inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) {
		ws := c.workers()
		var sums, weights [2]*worker.Table
		for i, w := range ws {
			sums[i] = c.table(w)
			weights[i] = c.table(w, func(spec *perdure.TableSpec) {
				spec.Name, spec.Rule, spec.Init = "w", perdure.Rule{Kind: perdure.RuleSGD, Rate: 1},
					perdure.Init{Kind: perdure.InitZeros}
			})
		}
		steps := func(clocks int) (seen [2]float32) {
			for slot, w := range ws {
				for range clocks {
					seen[slot] = c.first(weights[slot])
					c.inc(sums[slot], 1)
					c.inc(weights[slot], -1)
					if _, err := w.Clock(c.ctx); err != nil {
						t.Fatal(err)
					}
				}
			}
			return seen
		}
		steps(4)
		c.settle(ws)
		for _, w := range weights {
			if got := c.get(w); got != 8 {
				t.Fatalf("before the outage a weight is %v", got)
			}
		}
		c.Kill("server:0")
		c.Kill("server:1")
		c.pass(time.Second)
		const clocks = 7
		seen := steps(clocks)
		// The first step is based on rows read before the outage and counts in full for each slot.
		all, last := float32(2+clocks-1), float32(clocks-1)
		if shown == perdure.RowsFrozen {
			all, last = 2, 0
			for lag := 1; lag < clocks; lag++ {
				all += 1 / float32(1+lag)
			}
		}
		for slot := range ws {
			if want := 8 + last; seen[slot] != want {
				t.Errorf("slot %d read a weight of %v in the outage, want %v", slot, seen[slot], want)
			}
		}
		c.start("server:0")
		c.start("server:1")
		c.settle(ws)
		for slot := range ws {
			if got, want := c.get(weights[slot]), 8+all; got < want-1e-5 || got > want+1e-5 {
				t.Errorf("slot %d reads a weight of %v, want %v", slot, got, want)
			}
			if got := c.get(sums[slot]); got != 8+2*clocks {
				t.Errorf("slot %d reads a sum of %v, want %v", slot, got, 8+2*clocks)
			}
		}
	})
}

// first reads all rows, possibly of different clocks, and returns the first value.
func (c *cluster) first(t *worker.Table) float32 {
	c.Helper()
	got := make([]float32, rows*dim)
	if err := t.GetRun(c.ctx, 0, got); err != nil {
		c.Fatal(err)
	}
	return got[0]
}

// settle waits until all finished clocks are applied.
func (c *cluster) settle(ws []*worker.Client) {
	c.Helper()
	for _, w := range ws {
		if err := w.Settle(c.ctx); err != nil {
			c.Fatal(err)
		}
	}
}

// TestWhole checks that optional work ends when an outage begins, and does not start during an outage.
func TestWhole(t *testing.T) {
	job := perdure.JobSpec{OnOutage: perdure.OnOutage{Continue: true, Clocks: 100}}
	goesOn(t, "asp", 1, job, func(c *chained) {
		w := c.dial(0)
		table := c.table(w)
		c.step(w, table, 1)
		c.all(table)
		whole, end := w.ContextUntilOutage(c.ctx)
		defer end()
		<-time.After(2 * time.Second)
		if whole.Err() != nil {
			t.Fatal("it ended, and no shard is out")
		}
		c.Net.Cut("worker:0", "server:0", false)
		c.step(w, table, 1)
		<-time.After(2 * time.Second)
		in, endIn := w.ContextUntilOutage(c.ctx)
		defer endIn()
		if whole.Err() == nil || in.Err() == nil {
			t.Fatalf("a shard is out: what began before says %v, what begins now %v", whole.Err(), in.Err())
		}
		c.Net.Heal("worker:0", "server:0")
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		after, endAfter := w.ContextUntilOutage(c.ctx)
		defer endAfter()
		if after.Err() != nil {
			t.Fatal("the outage is over, and it does not begin")
		}
	})
}
