package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// manyIDs returns n rows of a sparse table.
func manyIDs(n int) []perdure.RowID {
	ids := make([]perdure.RowID, n)
	for i := range ids {
		ids[i] = perdure.RowID(i) * 0x9e3779b97f4a7c15
	}
	return ids
}

// all returns n rows filled with v.
func all(n int, v float32) []float32 {
	values := make([]float32, n*dim)
	for i := range values {
		values[i] = v
	}
	return values
}

// read reads rows whose values must all be equal, and returns that value and the waiting time.
func (c *cluster) read(t *worker.Table, ids []perdure.RowID) (float32, time.Duration) {
	c.Helper()
	got, before := make([]float32, len(ids)*dim), time.Now()
	if err := t.GetRows(c.ctx, ids, got); err != nil {
		c.Fatal(err)
	}
	for _, v := range got {
		if v != got[0] {
			c.Fatalf("a clock was torn: %v", got)
		}
	}
	return got[0], time.Since(before)
}

// TestPrefetch checks that prefetched rows are read without waiting, under every consistency model, dense or sparse.
// Reads of other rows wait.
func TestPrefetch(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:0", "ssp:2", "asp"} {
		for _, sparse := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%v", model, sparse), func(t *testing.T) {
				inCluster(t, model, "none", 1, 0, func(c *cluster) {
					w := c.dial("worker:0", 0)
					table, ids := c.table(w), everyRow(0)
					if sparse {
						table, ids = c.table(w, sparsely, func(s *perdure.TableSpec) { s.Name = "s" }), manyIDs(rows)
					}
					for clock := range perdure.Clock(6) {
						table.Forget()
						if clock == 3 { // rows that are not prefetched are waited for
							if _, waited := c.read(table, ids); waited == 0 {
								t.Error("rows that were not there were read at once")
							}
						} else {
							twice := slices.Concat(ids, ids[:3], nil)
							before := time.Now()
							if err := errors.Join(table.Prefetch(twice), table.Prefetch(ids),
								table.Prefetch(nil)); err != nil {
								t.Fatal(err)
							}
							if d := time.Since(before); d != 0 {
								t.Errorf("Prefetch waited %v", d)
							}
							c.pass(time.Second)
							if v, waited := c.read(table, ids); waited != 0 || v != float32(clock) {
								t.Errorf("at clock %d rows asked for ahead were read as %v after %v", clock, v, waited)
							}
						}
						if err := table.IncRows(ids, all(len(ids), 1)); err != nil {
							t.Fatal(err)
						}
						c.clock(w, clock+1)
						c.pass(100 * time.Millisecond)
					}
				})
			})
		}
	}
}

// TestPrefetchAndRollBack checks that rows whose prefetch is pending during a rollback are read as of the next
// generation.
func TestPrefetchAndRollBack(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:1"} {
		inCluster(t, model, "checkpoint:2", 1, 0, func(c *cluster) {
			w := c.dial("worker:0", 0)
			table, ids := c.table(w, sparsely), manyIDs(50)
			step := func(clock perdure.Clock, v float32) {
				if err := table.IncRows(ids, all(len(ids), v)); err != nil {
					t.Fatal(err)
				}
				c.clock(w, clock+1)
			}
			step(0, 1)
			step(1, 1)
			c.pass(time.Second)
			step(2, 1000)
			if err := table.Prefetch(ids); err != nil {
				t.Fatal(err)
			}
			c.Kill("server:1")
			c.start("server:1")
			c.pass(time.Second)
			if err := table.Prefetch(ids); !errors.Is(err, perdure.ErrRolledBack) {
				t.Errorf("Prefetch after a roll-back: %v", err)
			}
			c.clock(w, 2)
			if err := table.Prefetch(ids[:25]); err != nil {
				t.Fatal(err)
			}
			if v, _ := c.read(table, ids); v != 2 {
				t.Errorf("under %s the rows are %v after the roll-back, want 2", model, v)
			}
			step(2, 1)
			if v, _ := c.read(table, ids); v != 3 {
				t.Errorf("under %s the rows are %v a clock later, want 3", model, v)
			}
		})
	}
}

// TestCacheBytes checks that cached rows of sparse tables stay within CacheBytes for any prefetches and reads. Reads of
// rows that do not fit must succeed.
func TestCacheBytes(t *testing.T) {
	const room = 100 // rows, by the cache's accounting
	for _, model := range []string{"bsp", "ssp:3", "asp"} {
		inCluster(t, model, "none", 1, 0, func(c *cluster) {
			w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.CacheBytes = room * (4*dim + 40) })
			table, ids := c.table(w, sparsely), manyIDs(5*room)
			for clock := range perdure.Clock(4) {
				if err := table.Prefetch(ids); err != nil {
					t.Fatal(err)
				}
				c.pass(time.Second)
				for i, id := range ids {
					_, waited := c.read(table, []perdure.RowID{id})
					if there := i < room; there != (waited == 0) {
						t.Fatalf("%s: row %d of %d waited %v; %d have room", model, i, len(ids), waited, room)
					}
				}
				if v, _ := c.read(table, ids); v != float32(clock) {
					t.Fatalf("%s: the rows are %v at clock %d", model, v, clock)
				}
				if err := table.IncRows(ids, all(len(ids), 1)); err != nil {
					t.Fatal(err)
				}
				c.clock(w, clock+1)
				c.pass(time.Second)
			}
		})
	}
}

// TestForget checks that reads after Forget come from the servers and are as new as the servers' rows.
func TestForget(t *testing.T) {
	inCluster(t, "ssp:100", "none", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := c.tables(ws)
		if got := c.get(ts[0]); got != 0 {
			t.Fatal(got)
		}
		c.inc(ts[1], 7)
		c.clock(ws[1], 1)
		if err := ws[1].Settle(c.ctx); err != nil {
			t.Fatal(err)
		}
		if got := c.get(ts[0]); got != 0 {
			t.Fatalf("the cached rows are %v, want 0", got)
		}
		c.inc(ts[0], 1)
		ts[0].Forget()
		if got := c.get(ts[0]); got != 8 {
			t.Fatalf("after Forget the rows are %v, want 7 and the own 1", got)
		}
	})
}

// TestSettle checks that Settle returns when all shards have applied all finished clocks. It returns immediately if
// they already have, and returns ErrRolledBack if they never will.
func TestSettle(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:1", "asp"} {
		t.Run(model, func(t *testing.T) {
			inCluster(t, model, "checkpoint:2", 2, 0, func(c *cluster) {
				ws := c.workers()
				ts := c.tables(ws)
				if err := ws[0].Settle(c.within(time.Nanosecond)); err != nil {
					t.Fatalf("with nothing to wait for: %v", err)
				}
				c.inc(ts[0], 1)
				c.clock(ws[0], 1)
				settled := go1(func() error { return ws[0].Settle(c.ctx) })
				c.pass(time.Second)
				if done := len(settled) > 0; done != (model != "bsp") {
					t.Fatalf("settled while the other slot is at clock 0: %v", done)
				}
				c.clock(ws[1], 1)
				before := time.Now()
				if err := <-settled; err != nil || time.Since(before) > 10*time.Millisecond {
					t.Fatalf("Settle: %v after %v", err, time.Since(before))
				}
				both(2, func(slot int) { c.clock(ws[slot], 2) })
				c.pass(time.Second) // the checkpoint of clock 2 is durable
				c.cutServers("worker:0")
				if model != "bsp" {
					c.clock(ws[0], 3)
				} else if _, err := ws[0].Clock(c.within(time.Second)); !errors.Is(err, context.DeadlineExceeded) {
					t.Fatal(err)
				}
				if model == "bsp" {
					return // all finished clocks are applied
				}
				settled = go1(func() error { return ws[0].Settle(c.ctx) })
				c.pass(time.Second)
				c.Kill("server:1")
				c.start("server:1")
				if err := <-settled; !errors.Is(err, perdure.ErrRolledBack) {
					t.Fatalf("Settle while the job is rolled back: %v", err)
				}
			})
		})
	}
}

// TestSettleAtTheEnd checks that Settle, in a slot that was ahead of the job's early end, waits only for updates that
// will be applied.
func TestSettleAtTheEnd(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:2", "asp"} {
		inCluster(t, model, "none", 2, 100, func(c *cluster) {
			ws := c.workers()
			ts := c.tables(ws)
			ended := go1(func() error {
				c.pass(20 * time.Millisecond)
				return ws[1].EndJob(c.ctx)
			})
			both(2, func(slot int) {
				for clock := perdure.Clock(0); clock < ws[slot].End() && clock < 50; {
					c.inc(ts[slot], 1)
					var err error
					if clock, err = ws[slot].Clock(c.ctx); err != nil {
						t.Error(err)
						return
					}
					c.pass(time.Duration(1+slot) * time.Millisecond)
				}
				if err := ws[slot].Settle(c.ctx); err != nil {
					t.Errorf("%s: Settle of slot %d: %v", model, slot, err)
				}
			})
			if err := <-ended; err != nil || ws[0].End() > 50 {
				t.Errorf("%s: EndJob: %v; the end is %d", model, err, ws[0].End())
			}
		})
	}
}

// TestStoredRows checks that StoredRows lists exactly the updated rows, in order, and rejects a dense table.
func TestStoredRows(t *testing.T) {
	inCluster(t, "ssp:1", "none", 2, 0, func(c *cluster) {
		ws := c.workers()
		ts := []*worker.Table{c.table(ws[0], sparsely), c.table(ws[1], sparsely)}
		if ids, err := ts[0].StoredRows(c.ctx); err != nil || len(ids) != 0 {
			t.Fatalf("of an empty table: %v, %v", ids, err)
		}
		ids := manyIDs(3 << 17 / 2) // a single shard has more than one answer can list
		both(2, func(slot int) {
			mine := ids[slot*1000:]
			if err := ts[slot].IncRows(mine, all(len(mine), 1)); err != nil {
				t.Error(err)
			}
			c.clock(ws[slot], 1)
			if err := ws[slot].Settle(c.ctx); err != nil {
				t.Error(err)
			}
		})
		if _, waited := c.read(ts[0], []perdure.RowID{12345}); waited == 0 {
			t.Error("a row that nobody has was read at once")
		}
		got, err := ts[0].StoredRows(c.ctx)
		slices.Sort(ids)
		if err != nil || !slices.Equal(got, ids) {
			t.Errorf("%d rows, %v; want the %d that were updated", len(got), err, len(ids))
		}
		dense := c.table(ws[0], func(s *perdure.TableSpec) { s.Name = "d" })
		if _, err := dense.StoredRows(c.ctx); !errors.Is(err, perdure.ErrUsage) {
			t.Errorf("of a dense table: %v", err)
		}
	})
}

// TestNonFinite checks that NaN and Inf are rejected before any part of a delta is accepted, unless the table allows
// them.
func TestNonFinite(t *testing.T) {
	inCluster(t, "bsp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		tables := map[string]*worker.Table{
			"dense": c.table(w), "sparse": c.table(w, sparsely, func(s *perdure.TableSpec) { s.Name = "s" }),
		}
		for name, table := range tables {
			for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
				delta := all(2, 1)
				delta[dim+1] = float32(bad)
				err := table.IncRows([]perdure.RowID{3, 4}, delta)
				want := fmt.Sprintf("value 1 of row 4 of table %s is %v", table.Spec().Name, bad)
				if !errors.Is(err, perdure.ErrNonFinite) || !says(err, want) {
					t.Errorf("%s: %v; want ErrNonFinite with %q", name, err, want)
				}
			}
			if v, _ := c.read(table, []perdure.RowID{3, 4}); v != 0 {
				t.Errorf("%s: %v was taken of what was refused", name, v)
			}
		}
		allowed := c.table(w, sparsely, func(s *perdure.TableSpec) {
			s.Name, s.NonFinite = "a", perdure.AllowNonFinite
		})
		row := make([]float32, dim)
		if err := allowed.Inc(5, []float32{float32(math.NaN()), float32(math.Inf(1)), 1}); err != nil {
			t.Fatal(err)
		}
		for clock := range perdure.Clock(2) {
			if err := allowed.Get(c.ctx, 5, row); err != nil || !math.IsNaN(float64(row[0])) ||
				!math.IsInf(float64(row[1]), 1) || row[2] != 1 {
				t.Errorf("where they are allowed, at clock %d: %v, %v", clock, row, err)
			}
			c.clock(w, clock+1)
		}
	})
}

func says(err error, text string) bool { return err != nil && strings.Contains(err.Error(), text) }

// TestStatefulRules checks that, under a rule that keeps state, a slot's own writes become visible when a server's
// answer contains them and not before: under bsp at the next clock.
func TestStatefulRules(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:0"} {
		for _, sparse := range []bool{false, true} {
			inCluster(t, model, "none", 2, 0, func(c *cluster) {
				ws := c.workers()
				var ts []*worker.Table
				for _, w := range ws {
					ts = append(ts, c.table(w, func(s *perdure.TableSpec) {
						if s.Rule = (perdure.Rule{Kind: perdure.RuleMomentum, Rate: 0.5, Momentum: 0.5}); sparse {
							sparsely(s)
						}
					}))
				}
				ids := []perdure.RowID{1, 4, 9}
				var value, speed float32
				for clock := range perdure.Clock(4) {
					for slot, w := range ws {
						if v, _ := c.read(ts[slot], ids); v != value {
							t.Errorf("%s, sparse %v: slot %d at clock %d read %v, want %v", model, sparse, slot, clock,
								v, value)
						}
						if err := ts[slot].IncRows(ids, all(len(ids), 1)); err != nil {
							t.Fatal(err)
						}
						if v, _ := c.read(ts[slot], ids); v != value {
							t.Errorf("%s, sparse %v: slot %d at clock %d read %v after its Inc, want still %v", model,
								sparse, slot, clock, v, value)
						}
						_ = w
					}
					both(2, func(slot int) { c.clock(ws[slot], clock+1) })
					for range ws {
						speed = 0.5*speed + 1
						value -= 0.5 * speed
					}
				}
			})
		}
	}
}

// counting counts the bytes of the updates sent.
type counting struct {
	transport.Network
	mu    sync.Mutex
	bytes int
}

type countingConn struct {
	transport.Conn
	n *counting
}

func (n *counting) Dial(ctx context.Context, addr string) (transport.Conn, error) {
	c, err := n.Network.Dial(ctx, addr)
	return &countingConn{c, n}, err
}

func (c *countingConn) Send(frames ...wire.Frame) error {
	c.count(frames)
	return c.Conn.Send(frames...)
}

func (c *countingConn) TrySend(frames ...wire.Frame) error {
	c.count(frames) // the queue never fills up in these tests
	return c.Conn.TrySend(frames...)
}

func (c *countingConn) count(frames []wire.Frame) {
	c.n.mu.Lock()
	defer c.n.mu.Unlock()
	for i := range frames {
		if frames[i].Kind == wire.KindUpdate {
			c.n.bytes += frames[i].PayloadBytes()
		}
	}
}

func (n *counting) sent() int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.bytes
}

// TestFlush checks that Flush sends pending deltas before Clock, exactly once, and that servers apply nothing before
// Clock. Flushed rows can be Inc'd again.
func TestFlush(t *testing.T) {
	for _, model := range []string{"bsp", "asp"} {
		for _, sparse := range []bool{false, true} {
			inCluster(t, model, "none", 1, 0, func(c *cluster) {
				net := &counting{Network: c.Net.Host("worker:0")}
				w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.Network = net })
				o := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
				change := func(s *perdure.TableSpec) {
					if sparse {
						sparsely(s)
					}
				}
				table, seen, ids := c.table(w, change), c.table(o, change), everyRow(0)
				for clock := range perdure.Clock(4) {
					before := net.sent()
					if err := errors.Join(table.IncRows(ids[:8], all(8, 1)), table.Flush(), table.Flush()); err != nil {
						t.Fatal(err)
					}
					left := net.sent() - before
					if least := 8 * dim * 4; left < least {
						t.Errorf("%d bytes left before Clock, want %d at least", left, least)
					}
					for _, again := range [][]perdure.RowID{{3}, {9, 7}} { // including rows that were sent
						n := len(again)
						if err := errors.Join(table.IncRows(again, all(n, 100)),
							table.IncRows(again, all(n, -100))); err != nil {
							t.Errorf("Inc of a row that was flushed: %v", err)
						}
					}
					c.pass(time.Second)
					o.SetReadClock(clock)
					if v, _ := c.read(seen, ids); v != float32(clock) {
						t.Errorf("before clock %d ended, the table is %v", clock, v)
					}
					if err := table.IncRows(ids[8:], all(rows-8, 1)); err != nil {
						t.Fatal(err)
					}
					if v, _ := c.read(table, ids); v != float32(clock+1) {
						t.Errorf("own rows, in part flushed, are %v at clock %d", v, clock)
					}
					if clock == 2 {
						if err := table.Flush(); err != nil { // nothing is left for Clock to send
							t.Fatal(err)
						}
					}
					c.clock(w, clock+1)
					if more := net.sent() - before - left; more > left {
						t.Errorf("%d bytes left with Clock, after %d before: some left twice", more, left)
					}
				}
				if err := o.Close(); err != nil {
					t.Fatal(err)
				}
				if got := c.observerOf(4, change); got != 4 {
					t.Errorf("%s, sparse %v: the table is %v after 4 clocks", model, sparse, got)
				}
			})
		}
	}
}

// observerOf reads rows of a table at a clock that every slot has finished.
func (c *cluster) observerOf(at perdure.Clock, change func(*perdure.TableSpec)) float32 {
	c.Helper()
	w := c.dial("observer", perdure.NoSlot, func(cfg *testcluster.DialConfig) { cfg.Observer = true })
	defer w.Close()
	t := c.table(w, change)
	w.SetReadClock(at)
	v, _ := c.read(t, everyRow(0))
	return v
}

// TestFlushAndRollBack checks that a rollback drops flushed deltas together with the rest of the clock, and that their
// rows can be Inc'd again.
func TestFlushAndRollBack(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:1"} {
		inCluster(t, model, "checkpoint:2", 1, 0, func(c *cluster) {
			w := c.dial("worker:0", 0)
			table, ids := c.table(w, sparsely), manyIDs(50)
			step := func(clock perdure.Clock, v float32, end bool) {
				if err := errors.Join(table.IncRows(ids[:25], all(25, v)), table.Flush(),
					table.IncRows(ids[25:], all(25, v))); err != nil {
					t.Fatal(err)
				}
				if end {
					c.clock(w, clock+1)
				}
			}
			for clock := range perdure.Clock(2) {
				step(clock, 1, true)
			}
			c.pass(time.Second)
			step(2, 1000, true)
			step(3, 1000, false)
			c.Kill("server:0")
			c.start("server:0")
			c.pass(time.Second)
			if err := table.Flush(); !errors.Is(err, perdure.ErrRolledBack) {
				t.Errorf("Flush after a roll-back: %v", err)
			}
			c.clock(w, 2)
			for clock := perdure.Clock(2); clock < 5; clock++ {
				step(clock, 1, true)
				if v, _ := c.read(table, ids); v != float32(clock+1) {
					t.Errorf("%s: the rows are %v at clock %d", model, v, clock+1)
				}
			}
		})
	}
}

// TestTooManyParts checks that an update with too many parts is rejected each time, with a message that says so, and
// that other updates still work.
func TestTooManyParts(t *testing.T) {
	inCluster(t, "asp", "none", 1, 0, func(c *cluster) {
		w := c.dial("worker:0", 0)
		table := c.table(w, sparsely)
		n, row, flush := 0, perdure.RowID(0), error(nil)
		for ; n < 1<<17 && flush == nil; n++ {
			for row++; placement.ShardOf(&perdure.TableSpec{Sparse: true}, c.job.Shards, row) != 1; row++ {
			}
			if err := table.Inc(row, make([]float32, dim)); err != nil {
				t.Fatal(err)
			}
			flush = table.Flush()
		}
		_, clock := w.Clock(c.ctx)
		_, again := w.Clock(c.ctx)
		for what, err := range map[string]error{"Flush": flush, "Clock": clock, "the next Clock": again} {
			if !errors.Is(err, perdure.ErrUsage) || !says(err, "in 65535 parts") || !says(err, "Flush less often") {
				t.Errorf("%s after %d parts: %v", what, n, err)
			}
		}
		if v, _ := c.read(table, []perdure.RowID{row}); v != 0 {
			t.Error(v)
		}
	})
}
