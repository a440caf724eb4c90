package worker_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// piece is the range of clocks of an update: from ≤ clock < until.
type piece struct{ from, until perdure.Clock }

// pieces returns the clocks of the updates that shard 0 received from an incarnation of slot 0, in order.
func (c *chained) pieces(incarnation perdure.Incarnation) (all []piece) {
	c.with(0, func(s *chainServer) {
		for _, f := range s.replicas[0].log {
			if f.Kind == wire.KindUpdate && f.Parts > 0 && f.Incarnation == incarnation {
				all = append(all, piece{f.Clock, f.Until()})
			}
		}
	})
	return all
}

// merging is goesOn with a strategy and a table whose rule is additive for slot 0. test receives a function that makes
// shard 0 unavailable, so that nothing is sent to it, and one that makes it available again.
func merging(
	t *testing.T, recovery string, test func(c *chained, w *worker.Client, table *worker.Table, out, back func()),
	change ...func(*perdure.TableSpec),
) {
	t.Helper()
	inChain(t, "asp", recovery, 1, 2, 2, transport.MemoryOptions{MaxQueued: 1000}, func(c *chained) {
		c.job.OnOutage, c.job.OutageRows = perdure.OnOutage{Continue: true, Clocks: 1000}, perdure.RowsApply
		c.setView(func(v *protocol.View) {
			c.setChain(&v.Shards[1], 1)
			v.Shards[1].Epoch++
		})
		w := c.dial(0)
		out := func() {
			<-time.After(time.Second) // sent updates are acknowledged
			c.with(0, func(s *chainServer) { s.unready = true })
			c.setView(func(v *protocol.View) { v.Shards[0].Epoch++ })
			<-time.After(time.Second)
		}
		back := func() {
			c.with(0, func(s *chainServer) { s.unready = false })
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
		}
		test(c, w, c.table(w, change...), out, back)
	})
}

// TestMerges checks that pending updates for an unavailable shard are merged into one. It uses the memory of one
// update, reads see it once, and it counts for all of its clocks when the shard is available again.
func TestMerges(t *testing.T) {
	merging(t, "chain:2", func(c *chained, w *worker.Client, table *worker.Table, out, back func()) {
		for range 2 {
			c.all(table)
			c.step(w, table, 1)
		}
		bytes := int64(0)
		for round := range 2 {
			out()
			for clock := w.Now(); clock < perdure.Clock(50*(round+1)); clock++ {
				if v, there := c.all(table); v != float32(clock) || there != float32(clock) {
					t.Fatalf("at clock %d rows of the shard that is out are %v, others %v", clock, v, there)
				}
				c.step(w, table, 1)
			}
			<-time.After(time.Second)
			now := c.said(0).Outage
			if now == nil || now.Bytes == 0 || bytes > 0 && now.Bytes != bytes {
				t.Fatalf("in outage %d it says %+v; in the first %d bytes were queued", round, now, bytes)
			}
			bytes = now.Bytes
			if n := w.Keeps(); n > 1 {
				t.Errorf("it keeps %d updates", n)
			}
			back()
			table.Forget()
			c.read(table, float32(50*(round+1)))
		}
		if got, want := c.pieces(1), []piece{{0, 1}, {1, 2}, {2, 50}, {50, 100}}; !slices.Equal(got, want) {
			t.Errorf("its updates are of the clocks %v, want %v", got, want)
		}
	})
}

// TestMergesUpToCuts checks that no update has clocks on both sides of a cut, whether the strategy's interval or a
// named cut determines it.
func TestMergesUpToCuts(t *testing.T) {
	merging(t, "chain:2,checkpoint:10", func(c *chained, w *worker.Client, table *worker.Table, out, back func()) {
		c.all(table)
		out()
		for clock := range perdure.Clock(35) {
			if clock == 13 {
				c.setView(func(v *protocol.View) { v.Named = 13 })
				<-time.After(time.Second)
			}
			if v, _ := c.all(table); v != float32(clock) {
				t.Fatalf("at clock %d the row is %v", clock, v)
			}
			c.step(w, table, 1)
		}
		back()
		c.read(table, 35)
		got, want := c.pieces(1), []piece{{0, 10}, {10, 13}, {13, 20}, {20, 30}, {30, 35}}
		if !slices.Equal(got, want) {
			t.Errorf("its updates are of the clocks %v, want %v", got, want)
		}
	})
}

// TestMergesItsOwnOnly checks that clocks which an earlier process of the slot has done on a shard are sent unmerged,
// because the shard may have only some of them.
func TestMergesItsOwnOnly(t *testing.T) {
	merging(t, "chain:2", func(c *chained, first *worker.Client, table *worker.Table, out, _ func()) {
		for range 6 {
			c.step(first, table, 1)
		}
		if err := first.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		first.Close()
		c.setView(func(v *protocol.View) {
			// learned from other shards
			v.Slots[0] = protocol.SlotView{Incarnation: 2, Decided: true, Settled: true, Start: 2}
		})
		w := c.dial(0)
		table = c.table(w)
		c.all(table)
		out()
		for w.Now() < 20 {
			c.step(w, table, 1)
		}
		c.with(0, func(s *chainServer) { s.unready = false })
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		c.read(table, 20)
		if got := c.pieces(2); len(got) == 0 || slices.ContainsFunc(got, func(p piece) bool {
			return p.from < 6 && p.until > p.from+1
		}) || got[len(got)-1] != (piece{6, 20}) {
			t.Errorf("its updates are of the clocks %v", got)
		}
	})
}

// TestDoesNotMerge checks that updates are not merged if their rules are not additive, if their rows are abandoned, if
// merging saves little, or if the sum is not finite.
func TestDoesNotMerge(t *testing.T) {
	every := func(c *chained, table *worker.Table, _ perdure.Clock) error {
		return table.IncRun(0, slices.Repeat([]float32{1}, rows*dim))
	}
	for name, k := range map[string]struct {
		spec func(*perdure.TableSpec)
		inc  func(c *chained, table *worker.Table, clock perdure.Clock) error
	}{
		"a rate that falls": {func(s *perdure.TableSpec) {
			s.Rule = perdure.Rule{Kind: perdure.RuleSGD, Rate: 1, Schedule: perdure.ScheduleSqrt}
		}, every},
		"clipped": {func(s *perdure.TableSpec) {
			s.Rule = perdure.Rule{Kind: perdure.RuleSGD, Rate: 1, ClipNorm: 1}
		}, every},
		"evicted": {func(s *perdure.TableSpec) {
			s.Sparse, s.Rows, s.Evict = true, 0, 3
		}, func(c *chained, table *worker.Table, _ perdure.Clock) error {
			return table.IncRows([]perdure.RowID{0, 1, 2, 3, 4, 5, 6, 7}, slices.Repeat([]float32{1}, 8*dim))
		}},
		"other rows": {
			func(s *perdure.TableSpec) { s.Rows = 100_000 },
			func(c *chained, table *worker.Table, clock perdure.Clock) error {
				return table.IncRun(perdure.RowID(1000*clock), slices.Repeat([]float32{1}, 1000*dim))
			},
		},
		"infinite": {func(*perdure.TableSpec) {}, func(c *chained, table *worker.Table, clock perdure.Clock) error {
			return table.IncRun(0, slices.Repeat([]float32{math.MaxFloat32 * float32(1-2*(clock/2%2))}, rows*dim))
		}},
		"sent twice": {func(s *perdure.TableSpec) {}, func(c *chained, table *worker.Table, _ perdure.Clock) error {
			delta, err := table.Deltas(0, 1)
			if err == nil {
				clear(delta)
				err = table.Flush()
			}
			if err != nil {
				return err
			}
			return table.Inc(0, []float32{1, 1, 1})
		}},
	} {
		t.Run(name, func(t *testing.T) {
			merging(t, "chain:2", func(c *chained, w *worker.Client, table *worker.Table, out, back func()) {
				out()
				for clock := range perdure.Clock(4) {
					if err := k.inc(c, table, clock); err != nil {
						t.Fatal(err)
					}
					if _, err := w.Clock(c.ctx); err != nil {
						t.Fatal(err)
					}
				}
				back()
				got := c.pieces(1)
				if merged := slices.ContainsFunc(got, func(p piece) bool {
					return p.until > p.from+1
				}); merged || len(got) < 4 {
					t.Errorf("its updates are of the clocks %v", got)
				}
			}, k.spec)
		})
	}
}

// tappedLog records the updates appended to a log.
type tappedLog struct {
	updatelog.Log
	mu      sync.Mutex
	updates [][]piece // by shard
}

func (l *tappedLog) Append(
	ctx context.Context, shard int, payload [][]byte, done func(updatelog.Position, error),
) error {
	var f wire.Frame
	if _, err := wire.ParseHeader(payload[0], &f); err == nil && f.Kind == wire.KindUpdate && f.Parts == f.Part+1 {
		l.mu.Lock()
		l.updates[shard] = append(l.updates[shard], piece{f.Clock, f.Until()})
		l.mu.Unlock()
	}
	return l.Log.Append(ctx, shard, payload, done)
}

// of returns the updates appended to a shard's stream.
func (l *tappedLog) of(shard int) []piece {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.updates[shard])
}

// loggedOutage runs a test with slots whose job has an update log.
func loggedOutage(
	t *testing.T, model string, slots int, change func(job *perdure.JobSpec),
	test func(c *cluster, logs []*tappedLog, ws []*worker.Client),
) {
	t.Helper()
	job := jobOf(model, "stateless", slots, 1000)
	job.OnOutage = perdure.OnOutage{Continue: true, Clocks: 1000}
	change(&job)
	inJob(t, transport.MemoryOptions{}, nil, job, func(c *cluster) {
		var logs []*tappedLog
		var ws []*worker.Client
		for slot := range slots {
			log := &tappedLog{updates: make([][]piece, job.Shards)}
			logs = append(logs, log)
			ws = append(
				ws,
				c.dial(fmt.Sprintf("worker:%d", slot), perdure.Slot(slot), func(cfg *testcluster.DialConfig) {
					open := cfg.OpenLog
					cfg.OpenLog = func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
						var err error
						log.Log, err = open(ctx, addr, o)
						return log, err
					}
				}),
			)
		}
		test(c, logs, ws)
	})
}

// killAll kills both servers and waits until the workers detect it.
func (c *cluster) killAll() {
	c.Kill("server:0")
	c.Kill("server:1")
	c.pass(time.Second)
}

func (c *cluster) startAll() {
	c.start("server:0")
	c.start("server:1")
}

// TestLogsMerged checks that during an outage, updates are appended to the update log 16 clocks at a time, with large
// updates in several parts. The rest is appended when a call waits for it, or after some time.
func TestLogsMerged(t *testing.T) {
	const wide = 120_000
	for _, flushed := range []bool{false, true} {
		change := func(job *perdure.JobSpec) { job.OutageRows = perdure.RowsApply }
		loggedOutage(t, "asp", 1, change, func(c *cluster, logs []*tappedLog, ws []*worker.Client) {
			w := ws[0]
			table := c.table(w, func(s *perdure.TableSpec) { s.Dim = wide })
			delta := slices.Repeat([]float32{1}, rows*wide)
			step := func() {
				err := table.IncRun(0, delta)
				if flushed {
					err = table.Flush()
				}
				if err == nil {
					_, err = w.Clock(c.ctx)
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			got := make([]float32, wide)
			check := func() {
				if err := table.Get(c.ctx, 0, got); err != nil || got[0] != float32(w.Now()) || got[wide-1] != got[0] {
					t.Fatalf("at clock %d the row is %v to %v: %v", w.Now(), got[0], got[wide-1], err)
				}
			}
			check()
			step()
			c.killAll()
			for range 40 {
				check()
				step()
			}
			for shard := range 4 {
				if got, want := logs[0].of(shard), []piece{{0, 1}, {1, 17}, {17, 33}}; !slices.Equal(got, want) {
					t.Errorf("the log of shard %d was given the clocks %v, want %v", shard, got, want)
				}
			}
			c.pass(3 * time.Second)
			if got := logs[0].of(3); got[len(got)-1] != (piece{33, 41}) {
				t.Errorf("after 3 s the log of shard 3 was given the clocks %v", got)
			}
			step()
			step()
			c.startAll()
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
			if got := logs[0].of(3); got[len(got)-1] != (piece{41, 43}) {
				t.Errorf("in the end the log of shard 3 was given the clocks %v", got)
			}
			table.Forget()
			check()
		})
	}
}

// TestHoldsNobodyUp checks that a worker does not withhold clocks for long if other slots wait for them while it waits
// for those slots.
func TestHoldsNobodyUp(t *testing.T) {
	loggedOutage(t, "ssp:0", 2, func(*perdure.JobSpec) {}, func(c *cluster, _ []*tappedLog, ws []*worker.Client) {
		ts := c.tables(ws)
		run := func(clocks int) {
			both(2, func(slot int) {
				for range clocks {
					all := make([]float32, rows*dim)
					err := ts[slot].GetRun(c.ctx, 0, all)
					if err == nil {
						err = ts[slot].IncRun(0, slices.Repeat([]float32{1}, rows*dim))
					}
					if err == nil {
						_, err = ws[slot].Clock(c.ctx)
					}
					if err != nil {
						t.Errorf("slot %d: %v", slot, err)
						return
					}
				}
			})
		}
		run(3)
		c.Net.Cut("worker:0", "server:0", false)
		run(1)
		start := time.Now()
		run(60)
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("60 clocks took %v", took)
		}
		c.Net.Heal("worker:0", "server:0")
		for _, w := range ws {
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
		}
		ts[0].Forget()
		if got := c.get(ts[0]); got != 2*64 {
			t.Errorf("the rows are %v", got)
		}
	})
}

func newNaiveMap() *naiveMap { return &naiveMap{values: map[perdure.RowID][dim]float32{}, scale: 1} }

// TestMergedRows checks that a merged update is the sum of its updates, for any rows, dense or sparse, and that the
// slot's own reads include it.
func TestMergedRows(t *testing.T) {
	for round := range uint64(20) {
		change := func(job *perdure.JobSpec) { job.OutageRows = perdure.RowsApply }
		loggedOutage(t, "asp", 1, change, func(c *cluster, logs []*tappedLog, ws []*worker.Client) {
			w, rng := ws[0], rand.New(rand.NewPCG(round, *seed))
			ts := []*worker.Table{c.table(w), c.table(w, sparsely, func(s *perdure.TableSpec) { s.Name = "s" })}
			naive := []*naiveMap{newNaiveMap(), newNaiveMap()}
			ids := [][]perdure.RowID{make([]perdure.RowID, rows), make([]perdure.RowID, rows)}
			for i := range rows {
				ids[0][i], ids[1][i] = perdure.RowID(i), perdure.RowID(i)*0x1234_5678_9abc_def1
			}
			check := func() {
				t.Helper()
				for i, table := range ts {
					got := make([]float32, rows*dim)
					if err := table.GetRows(c.ctx, ids[i], got); err != nil {
						t.Fatal(err)
					}
					if want := naive[i].list(ids[i]); !slices.Equal(got, want) {
						t.Fatalf("round %d: at clock %d table %d reads %v, want %v", round, w.Now(), i, got, want)
					}
				}
			}
			for clock := range 60 {
				if clock == 4 {
					c.killAll()
				}
				check()
				for range rng.IntN(4) {
					i := rng.IntN(2)
					some := drawIDs(rng, i == 1)
					delta := make([]float32, len(some)*dim)
					for k := range delta {
						delta[k] = float32(rng.IntN(7) - 3)
					}
					if err := ts[i].IncRows(some, delta); err != nil {
						t.Fatal(err)
					}
					for k, row := range some {
						naive[i].inc(row, delta[k*dim:(k+1)*dim])
					}
				}
				if err := w.SaveState([]byte{byte(clock)}); err != nil {
					t.Fatal(err)
				}
				if _, err := w.Clock(c.ctx); err != nil {
					t.Fatal(err)
				}
			}
			if got := logs[0].of(0); len(got) > 12 {
				t.Errorf("round %d: the log of shard 0 was given the clocks %v", round, got)
			}
			c.startAll()
			if err := w.Settle(c.ctx); err != nil {
				t.Fatal(err)
			}
			for _, table := range ts {
				table.Forget()
			}
			check()
			w.Close()
			c.pass(time.Second)
			if state, err := c.dial("worker:1", 0).LoadState(c.ctx); err != nil || !slices.Equal(state, []byte{59}) {
				t.Errorf("round %d: the next process is given the state %v, %v", round, state, err)
			}
		})
	}
}

// TestMergesWeakened checks updates that servers scale down by different factors, because each repeats earlier steps. A
// merged update must have the same effect as the separate ones.
func TestMergesWeakened(t *testing.T) {
	loggedOutage(t, "asp", 1, func(job *perdure.JobSpec) {
		job.StaleScale = perdure.ScaleAverage
	}, func(c *cluster, logs []*tappedLog, ws []*worker.Client) {
		w := ws[0]
		gradients := c.table(w, func(s *perdure.TableSpec) { s.Rule = perdure.Rule{Kind: perdure.RuleSGD, Rate: 1} })
		sums := c.table(w, func(s *perdure.TableSpec) { s.Name = "sums" })
		want := float32(0)
		for clock := range 45 {
			if clock == 5 {
				c.killAll()
			}
			c.get(gradients)
			c.get(sums)
			c.inc(gradients, -1)
			c.inc(sums, 1)
			if _, err := w.Clock(c.ctx); err != nil {
				t.Fatal(err)
			}
			want += 1 / float32(max(1, clock-4))
		}
		if got := logs[0].of(2); len(got) > 9 {
			t.Errorf("the log of shard 2 was given the clocks %v", got)
		}
		c.startAll()
		if err := w.Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		gradients.Forget()
		sums.Forget()
		if got := c.get(gradients); math.Abs(float64(got-want)) > 1e-4 {
			t.Errorf("the steps come to %v, want %v", got, want)
		}
		if got := c.get(sums); got != 45 {
			t.Errorf("the sums are %v", got)
		}
	})
}
