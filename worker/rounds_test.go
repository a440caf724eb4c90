package worker_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// TestPutOffRound checks that a round that was delayed until its reader had accepted the previous one contains the
// whole state at its end. This includes changes since MinClock advanced, because a reader must not consider a row newer
// than it is.
func TestPutOffRound(t *testing.T) {
	slow := transport.NewFaultLayer(nil)
	inClusterOf(t, transport.MemoryOptions{}, slowly("worker:1", slow), "essp:9", "none", 2, 0, func(c *cluster) {
		const large, lone = 400_000, 99_999 // shard 0 has 100,000 rows
		ws, _, ts := twoTapped(c, func(s *perdure.TableSpec) { s.Rows = large })
		all, row := make([]float32, lone*dim), make([]float32, dim)
		if err := errors.Join(ts[1].GetRun(c.ctx, 0, all), ts[1].Get(c.ctx, lone, row)); err != nil {
			t.Fatal(err)
		}
		slow.SetLink(transport.LinkModel{BytesPerSecond: 1 << 20})
		for clock := range perdure.Clock(2) {
			if err := ts[0].IncRun(0, all); err != nil {
				t.Fatal(err)
			}
			both(2, func(slot int) { c.clock(ws[slot], clock+1) })
			c.pass(50 * time.Millisecond)
		}
		c.incRows(ts[0], 1, lone)
		c.clock(ws[0], 3)
		c.pass(20 * time.Second) // both rounds have come
		before := ws[1].Counters().ClockDifferential
		if err := ts[1].Get(c.ctx, lone, row); err != nil {
			t.Fatal(err)
		}
		after := ws[1].Counters().ClockDifferential
		// At clock 2, with 3 clocks of the other slot the lag is 2 - 2; with 2 clocks it is 1 - 2.
		if has, said := row[0] == 1, after[0] == before[0]+1; has != said {
			t.Errorf("the row has what changed it: %v; said to: %v (%v, before that %v)", has, said, after, before)
		}
	})
}

// TestLargeRound checks that a round larger than one handover to the transport is complete.
func TestLargeRound(t *testing.T) {
	inCluster(t, "essp:0", "none", 2, 0, func(c *cluster) {
		const n, wide = 4 * 6 << 10, 256 // 6 MiB of each shard
		ws, taps, ts := twoTapped(c, func(s *perdure.TableSpec) { s.Rows, s.Dim = n, wide })
		values, ones := make([]float32, n*wide), make([]float32, n*wide)
		for i := range ones {
			ones[i] = 1
		}
		asked := 0
		for clock := range perdure.Clock(4) {
			if err := ts[0].GetRun(c.ctx, 0, values); err != nil || values[0] != float32(clock) ||
				values[n*wide-1] != float32(clock) {
				t.Fatalf("at clock %d rows are %v and %v: %v", clock, values[0], values[n*wide-1], err)
			}
			if asked = max(asked, taps[0].sent(wire.KindGet)); clock > 0 && taps[0].sent(wire.KindGet) > asked {
				t.Errorf("it asked at clock %d", clock)
			}
			if err := ts[1].IncRun(0, ones); err != nil {
				t.Fatal(err)
			}
			both(2, func(slot int) { c.clock(ws[slot], clock+1) })
			c.pass(50 * time.Millisecond)
		}
		if pushed := taps[0].takePushed(); len(pushed) != n || pushed[0] != 4 || pushed[n-1] != 4 {
			t.Errorf("%d rows were pushed, the first %d times, the last %d times", len(pushed), pushed[0], pushed[n-1])
		}
	})
}

// TestPushOfEvicted checks that a row which a server evicts is pushed with its initial value.
func TestPushOfEvicted(t *testing.T) {
	inCluster(t, "essp:0", "none", 2, 0, func(c *cluster) {
		ws, taps, ts := twoTapped(c, func(s *perdure.TableSpec) { s.Sparse, s.Rows, s.Evict = true, 0, 3 })
		want := []float32{0, 7, 7, 7, 7, 0, 0, 0, 0}
		gone := false
		c.reads(ts[0], false, 0, 1, 2)
		c.incRows(ts[1], 7, 1)
		for clock := range perdure.Clock(len(want) - 1) {
			both(2, func(slot int) { c.clock(ws[slot], clock+1) })
			c.pass(10 * time.Millisecond)
			v, waited := c.read(ts[0], []perdure.RowID{1})
			if gone = gone || v == 0; waited != 0 || v != 0 && v != 7 || gone && v != 0 || clock == 0 && gone ||
				clock > 5 && !gone {
				t.Errorf("at clock %d the row is %v after %v", clock+1, v, waited)
			}
		}
		if n := taps[0].takePushed()[1]; n != 2 {
			t.Errorf("the row was pushed %d times, want when it was changed and when it was evicted", n)
		}
	})
}

// TestTimeSplit checks that a slot's time is accounted for exactly, with links of 10 ms.
func TestTimeSplit(t *testing.T) {
	const link = 10 * time.Millisecond
	like := transport.MemoryOptions{MinLatency: link, MaxLatency: link}
	for _, model := range []string{"ssp:0", "essp:0", "bsp", "vap:0.001"} {
		inClusterOf(t, like, nil, model, "none", 2, 0, func(c *cluster) {
			ws, _, ts := twoTapped(c)
			var at perdure.WorkerCounters
			check := func(what string, stale, comm, compute time.Duration) {
				c.Helper()
				now := ws[0].Counters()
				for i, d := range []time.Duration{
					time.Duration(now.StalenessNs-at.StalenessNs) - stale, time.Duration(now.CommNs-at.CommNs) - comm,
					time.Duration(now.ComputeNs-at.ComputeNs) - compute,
				} {
					if d.Abs() > 50*time.Microsecond {
						t.Errorf("%s, %s: %s differs by %v", model, what,
							[]string{"staleness", "communication", "compute"}[i], d)
					}
				}
				at = now
			}
			ts[0].Forget()
			c.get(ts[0])
			check("the first read", 0, 2*link, 0)
			c.pass(30 * time.Millisecond)
			check("a program that computes", 0, 0, 30*time.Millisecond)
			c.inc(ts[0], 1)
			switch model {
			case "vap:0.001":
				c.get(ts[1])
				c.pass(link)
				at = ws[0].Counters()
				c.clock(ws[0], 1)
				check("a clock that may go", 0, 0, 0)
				c.inc(ts[0], 1)
				c.clock(ws[0], 2) // update, push, its notification, acknowledgement
				check("a clock that must be seen", 4*link, 0, 0)
				return
			case "bsp":
				done := go1(func() bool { c.clock(ws[1], 1); return true })
				c.clock(ws[0], 1)
				check("a clock in two steps", 0, 2*link, 0)
				<-done
				c.get(ts[0])
				check("a read of what is over", 0, 2*link, 0)
				return
			}
			c.clock(ws[0], 1)
			done := go1(func() bool { c.pass(50 * time.Millisecond); c.clock(ws[1], 1); return true })
			if model == "ssp:0" {
				c.get(ts[0]) // requested at 10 ms, delayed by the server until the other slot's update arrives at 60 ms
				check("a read that is held", 50*time.Millisecond, 2*link, 0)
			} else {
				// The travel time of the push is unknown: the reader counts it as waiting for the other slot.
				c.get(ts[0])
				check("a read that waits for a push", 50*time.Millisecond+2*link, 0, 0)
			}
			<-done
		})
	}
}

// TestManyGoroutines checks goroutines that read, Inc and prefetch the same rows in any order while another goroutine
// ends clocks. None sees an error, and the final rows contain all deltas.
func TestManyGoroutines(t *testing.T) {
	for _, model := range models {
		for _, cache := range []int{0, 20 * (4*dim + 40)} {
			inCluster(t, model, "none", 1, 0, func(c *cluster) {
				w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.CacheBytes = cache })
				tables := []*worker.Table{
					c.table(w, func(s *perdure.TableSpec) { s.Rows = 40 }),
					c.table(w, sparsely, func(s *perdure.TableSpec) { s.Name = "s" }),
				}
				var total [2]float32
				var mu sync.Mutex
				var wg sync.WaitGroup
				for g := range 6 {
					wg.Go(func() {
						rng := rand.New(rand.NewPCG(*seed, uint64(g)))
						for range 60 {
							at := rng.IntN(2)
							table, ids := tables[at], everyRow(0)[rng.IntN(5):]
							var err error
							switch rng.IntN(4) {
							case 0:
								err = table.Prefetch(ids)
							case 1:
								mu.Lock()
								total[at]++
								mu.Unlock()
								err = table.IncRows(everyRow(0), all(rows, 1))
							default:
								err = table.GetRows(c.ctx, ids, make([]float32, len(ids)*dim))
							}
							if err != nil {
								t.Errorf("%s: %v", model, err)
							}
							c.pass(time.Duration(rng.IntN(400)) * time.Microsecond)
						}
					})
				}
				wg.Go(func() {
					for clock := range perdure.Clock(40) {
						c.pass(300 * time.Microsecond)
						if _, err := w.Clock(c.ctx); err != nil {
							t.Errorf("%s: Clock %d: %v", model, clock, err)
						}
					}
				})
				wg.Wait()
				c.clock(w, w.Now()+1)
				for i, table := range tables {
					if v, _ := c.read(table, everyRow(0)); v != total[i] {
						t.Errorf("%s: the rows are %v, want %v", model, v, total[i])
					}
				}
			})
		}
	}
}

// TestModelsTogether checks tables with different consistency models in one job. Each follows its own model. A killed
// server affects all of them, and slots continue.
func TestModelsTogether(t *testing.T) {
	for _, model := range []string{"essp:1,b=bsp", "asp,w=essp:1", "ssp:1,w=essp:2,v=vap:1e9"} {
		for _, recovery := range []string{"none", "checkpoint:4"} {
			t.Run(model+"/"+recovery, func(t *testing.T) {
				inCluster(t, model, recovery, 2, 12, func(c *cluster) {
					ws := c.workers()
					go func() {
						c.pass(45 * time.Millisecond)
						c.Kill("server:1")
						c.start("server:1")
					}()
					both(2, func(slot int) {
						w := ws[slot]
						var ts []*worker.Table
						for _, name := range []string{"t", "b", "v", "w"} {
							ts = append(ts, c.table(w, func(s *perdure.TableSpec) { s.Name = name }))
						}
						values := make([]float32, rows*dim)
						for over := false; !over; {
							var err error
							for w.Now() < 12 && err == nil {
								for _, table := range ts {
									err = errors.Join(err, table.GetRun(c.ctx, 0, values),
										table.IncRun(0, all(rows, 1)))
									if errors.Is(err, perdure.ErrRolledBack) {
										break
									}
								}
								c.pass(5 * time.Millisecond)
								if err == nil || errors.Is(err, perdure.ErrRolledBack) {
									_, err = w.Clock(c.ctx)
								}
							}
							if err == nil {
								err = w.Finish(c.ctx)
							}
							if over = err == nil; errors.Is(err, perdure.ErrRolledBack) {
								_, err = w.Clock(c.ctx)
							}
							if err != nil && !errors.Is(err, perdure.ErrStopped) {
								t.Errorf("slot %d at clock %d: %v", slot, w.Now(), err)
								return
							}
						}
						if recovery == "none" {
							return // updates on the server since then are lost
						}
						for _, table := range ts {
							table.Forget()
							if err := table.GetRun(c.ctx, 0, values); err == nil &&
								(values[0] != 24 || values[rows*dim-1] != 24) {
								t.Errorf("table %s is %v in the end, want 24", table.Spec().Name, values)
							}
						}
					})
				})
			})
		}
	}
}
