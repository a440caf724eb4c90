package worker_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// models lists all consistency models. Under vap the bound is never reached.
var models = []string{"bsp", "ssp:0", "ssp:2", "essp:0", "essp:2", "asp", "vap:1e9"}

// bounded returns the tables for tests of a bounded cache. All but the last have more rows than the cache can hold.
func bounded() map[string]func(*perdure.TableSpec) {
	return map[string]func(*perdure.TableSpec){
		"dense":  func(s *perdure.TableSpec) { s.Rows = 400 },
		"sparse": sparsely,
		"sgd":    func(s *perdure.TableSpec) { s.Rows, s.Rule = 400, perdure.Rule{Kind: perdure.RuleSGD, Rate: 1} },
		"small":  func(s *perdure.TableSpec) { s.Rows = 8 },
		"whole":  whole("t", 400),
		"tiny":   whole("t", 3),
	}
}

// TestBoundedCache checks that cached rows use at most CacheBytes for any sequence of reads, Incs and prefetches, with
// tables smaller or larger than the cache. Reads must return the same as a map of all deltas.
func TestBoundedCache(t *testing.T) {
	for _, model := range models {
		for name, change := range bounded() {
			t.Run(model+"/"+name, func(t *testing.T) {
				inCluster(t, model, "none", 1, 0, func(c *cluster) { boundedCache(c, change) })
			})
		}
	}
}

// boundedSlot is the program of the only slot. want holds the sum of its deltas by row.
type boundedSlot struct {
	*cluster
	w     *worker.Client
	t     *worker.Table
	rng   *rand.Rand
	ids   []perdure.RowID
	scale float32
	want  map[perdure.RowID]float32
}

func boundedCache(c *cluster, change func(*perdure.TableSpec)) {
	const room = 50 * (4*dim + 40)
	w := c.dial("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.CacheBytes = room })
	s := &boundedSlot{
		c, w, c.table(w, change), rand.New(rand.NewPCG(*seed, 7)), manyIDs(400), 1,
		map[perdure.RowID]float32{},
	}
	if spec := s.t.Spec(); !spec.Sparse {
		s.ids = s.ids[:spec.Rows]
		for i := range s.ids {
			s.ids[i] = perdure.RowID(i)
		}
	}
	if s.t.Spec().Rule.Kind == perdure.RuleSGD {
		s.scale = -1
	}
	for clock := range perdure.Clock(30) {
		for range 12 {
			if err := s.step(); err != nil {
				c.Fatalf("-worker.seed=%d: at clock %d: %v", *seed, clock, err)
			}
			if left, taken := w.CacheLeft(); left < 0 || left+taken != room {
				c.Fatalf("%d bytes are left of the cache, and its rows take %d of %d", left, taken, room)
			}
			if s.rng.IntN(3) == 0 {
				c.pass(time.Millisecond)
			}
		}
		c.clock(w, clock+1)
	}
}

// some returns rows close to each other, so that clocks read the same rows again.
func (s *boundedSlot) some() (list []perdure.RowID) {
	from := s.rng.IntN(len(s.ids))
	for range 1 + s.rng.IntN(30) {
		list = append(list, s.ids[(from+s.rng.IntN(20))%len(s.ids)])
	}
	return list
}

// run returns consecutive rows, or a single row of a sparse table.
func (s *boundedSlot) run() []perdure.RowID {
	from, n := s.rng.IntN(len(s.ids)), 1
	if !s.t.Spec().Sparse {
		n += s.rng.IntN(60)
	}
	return s.ids[from:min(from+n, len(s.ids))]
}

// step reads, Incs or prefetches rows.
func (s *boundedSlot) step() error {
	list, run, v := s.some(), s.run(), float32(1+s.rng.IntN(9))
	got := make([]float32, 60*dim)
	switch op := s.rng.IntN(6); {
	case op < 2:
		got = got[:len(list)*dim]
		return errors.Join(s.t.GetRows(s.ctx, list, got), s.check(list, got))
	case op == 2 && s.t.Spec().Sparse:
		return errors.Join(s.t.Get(s.ctx, run[0], got[:dim]), s.check(run, got[:dim]))
	case op == 2:
		got = got[:len(run)*dim]
		return errors.Join(s.t.GetRun(s.ctx, run[0], got), s.check(run, got))
	case op == 3:
		s.inc(list, v)
		return s.t.IncRows(list, all(len(list), v))
	case op == 4 && s.t.Spec().Sparse:
		s.inc(run, v)
		return s.t.Inc(run[0], all(1, v))
	case op == 4:
		s.inc(run, v)
		return s.t.IncRun(run[0], all(len(run), v))
	}
	return s.t.Prefetch(list)
}

func (s *boundedSlot) inc(list []perdure.RowID, v float32) {
	for _, row := range list {
		s.want[row] += s.scale * v
	}
}

func (s *boundedSlot) check(list []perdure.RowID, got []float32) error {
	for i, v := range got {
		if row := list[i/dim]; v != s.want[row] {
			return fmt.Errorf("row %d is %v, want %v", row, got[i/dim*dim:][:dim], s.want[row])
		}
	}
	return nil
}

// onShard returns n rows of a sparse table that belong to one shard.
func onShard(shard perdure.ShardID, shards, n int) (ids []perdure.RowID) {
	for row := perdure.RowID(1); len(ids) < n; row++ {
		if placement.ShardOf(&perdure.TableSpec{Sparse: true}, shards, row) == shard {
			ids = append(ids, row)
		}
	}
	return ids
}

// TestEviction checks that a row can be evicted if neither the current nor the previous clock read it. Reads of rows
// that do not fit into the cache must succeed.
func TestEviction(t *testing.T) {
	for _, model := range []string{"ssp:20", "essp:20", "vap:1e9"} {
		for _, sparse := range []bool{true, false} {
			inCluster(t, model, "none", 2, 0, func(c *cluster) { eviction(c, sparse) })
		}
	}
}

func eviction(c *cluster, sparse bool) {
	ids, change := onShard(2, c.job.Shards, 60), sparsely
	if !sparse {
		change = func(s *perdure.TableSpec) { s.Rows = 1000 }
		for i := range ids {
			ids[i] = perdure.RowID(510 + i)
		}
	}
	room := func(cfg *testcluster.DialConfig) { cfg.CacheBytes = 50 * (4*dim + 40) }
	w, tp := c.tapped("worker:0", 0, room)
	other := c.dial("worker:1", 1)
	table, theirs := c.table(w, change), c.table(other, change)
	total, clock := float32(0), perdure.Clock(0)
	next := func() {
		c.incRows(theirs, 1, ids...)
		total++
		clock++
		both(2, func(slot int) { c.clock([]*worker.Client{w, other}[slot], clock) })
		c.pass(10 * time.Millisecond)
	}
	cached := func(want bool, ids []perdure.RowID) {
		c.Helper()
		for _, row := range ids {
			if has, pushed := table.Cached(row); has != want || pushed != (want && table.Spec().Consistency.Pushed()) {
				c.Fatalf("%s, sparse %v, clock %d: row %d is cached: %v, pushed: %v; want %v", c.job.Consistency,
					sparse, clock, row, has, pushed, want)
			}
		}
	}
	get := func(ids []perdure.RowID) { // answers may differ in age
		if err := table.GetRows(c.ctx, ids, make([]float32, len(ids)*dim)); err != nil {
			c.Fatal(err)
		}
	}
	a, b, more := ids[:20], ids[20:40], ids[40:]
	if !sparse { // Table reads the first row of each shard
		next()
		next()
	}
	get(a)
	next()
	get(b)
	get(more)
	cached(true, a)
	cached(true, b)
	cached(true, more[:5])
	next()
	get(b)
	get(more)
	get(a[:5])
	cached(true, b)
	cached(true, more)
	next() // the reader unsubscribes from rows that do not fit
	tp.takePushed()
	next()
	if pushed := tp.takePushed(); table.Spec().Consistency.Pushed() != (len(pushed) > 0) {
		c.Errorf("%s: rows %v were pushed", c.job.Consistency, pushed)
	} else {
		for row := range pushed {
			if has, _ := table.Cached(row); !has {
				c.Errorf("%s: row %d was pushed, which was evicted", c.job.Consistency, row)
			}
		}
	}
	table.Forget()
	if v, _ := c.read(table, ids); v != total {
		c.Errorf("%s: the rows are %v, want %v", c.job.Consistency, v, total)
	}
}

// TestRunsBeyondTheCache uses a dense table larger than the cache. Rows read by number are cached, runs are not, and
// neither hides values that the other has returned.
func TestRunsBeyondTheCache(t *testing.T) {
	for _, model := range []string{"ssp:3", "essp:3"} {
		inCluster(t, model, "none", 2, 0, func(c *cluster) {
			change := func(s *perdure.TableSpec) { s.Rows = 1000 }
			w, tp := c.tapped("worker:0", 0, func(cfg *testcluster.DialConfig) { cfg.CacheBytes = 50 * (4*dim + 40) })
			other := c.dial("worker:1", 1)
			table, theirs := c.table(w, change), c.table(other, change)
			run := make([]float32, 100*dim)
			for _, list := range [][]perdure.RowID{{7}, {9, 10, 11}, {20, 22}} {
				c.reads(table, false, 0, list...)
				c.reads(table, true, 0, list...)
			}
			for clock := range perdure.Clock(3) {
				c.incRows(theirs, 1, everyRow(0)...)
				c.clock(other, clock+1)
				if err := other.Settle(c.ctx); err != nil {
					t.Fatal(err)
				}
				if err := table.GetRun(c.ctx, 0, run); err != nil || run[7*dim] != float32(clock+1) {
					t.Fatalf("%s: a run: %v, %v", model, run[7*dim], err)
				}
				c.reads(table, true, float32(clock+1), 7)
				c.reads(table, true, float32(clock+1), 9, 10)
			}
			tp.takePushed()
			c.clock(w, 1)
			c.pass(10 * time.Millisecond)
			if pushed := tp.takePushed(); len(pushed) > 6 {
				t.Errorf("%s: rows %v were pushed, most of which were read in runs", model, pushed)
			}
			c.reads(table, true, 3, 9, 10)
		})
	}
}
