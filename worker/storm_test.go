package worker_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// stormRow holds a row as one slot last read it: the number of each slot's clocks in it.
type stormRow [dim]float32

// TestSparseStorm checks slots that prefetch, flush, forget and read rows of a sparse table in any order. Connections
// break and servers are killed. Reads must be within their bound, include the slot's own writes, and never decrease.
func TestSparseStorm(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:0", "ssp:2", "essp:0", "essp:2", "asp", "vap:30"} {
		for _, cache := range []int{0, 20 * (4*dim + 40)} {
			t.Run(fmt.Sprintf("%s/%d", model, cache), func(t *testing.T) { storm(t, model, cache, true) })
		}
	}
}

// TestDenseStorm checks the same for dense tables larger and smaller than the cache.
func TestDenseStorm(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:2", "essp:0", "essp:2", "asp", "vap:30"} {
		for _, cache := range []int{0, 20 * (4*dim + 40)} {
			t.Run(fmt.Sprintf("%s/%d", model, cache), func(t *testing.T) { storm(t, model, cache, false) })
		}
	}
}

func storm(t *testing.T, model string, cacheBytes int, sparse bool) {
	inCluster(t, model, "checkpoint:3", dim, 0, func(c *cluster) {
		const clocks = 25
		var ws []*worker.Client
		for slot := range perdure.Slot(dim) {
			host := fmt.Sprintf("worker:%d", slot)
			net := &lazyNetwork{
				Network: c.Net.Host(host), t: t, rng: rand.New(rand.NewPCG(*seed, uint64(slot))),
				breaks: 0.001, most: 500 * time.Microsecond,
			}
			ws = append(ws, c.dial(host, slot, func(cfg *testcluster.DialConfig) {
				cfg.Network, cfg.CacheBytes = net, cacheBytes
			}))
		}
		done := make(chan struct{})
		go func() { // kills servers
			defer close(done)
			rng := rand.New(rand.NewPCG(*seed, 99))
			for range 4 {
				c.pass(time.Duration(20+rng.IntN(200)) * time.Millisecond)
				host := fmt.Sprintf("server:%d", rng.IntN(c.job.Servers))
				c.Kill(host)
				c.start(host)
			}
		}()
		both(dim, func(slot int) {
			w := ws[slot]
			spec := perdure.TableSpec{Name: "t", Sparse: sparse, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
			if !sparse {
				spec.Rows = 40
			}
			table, err := w.Table(c.ctx, spec)
			if err != nil {
				t.Error(err)
				return
			}
			s := &stormSlot{c: c, w: w, t: table, slot: slot, rng: rand.New(rand.NewPCG(*seed, uint64(100+slot)))}
			for err := error(nil); ; {
				for s.clock < clocks && err == nil && !t.Failed() {
					err = s.iterate()
				}
				if err == nil { // other slots may still need this one to repeat clocks
					err = w.Finish(c.within(time.Second))
				}
				if errors.Is(err, context.DeadlineExceeded) && c.ctx.Err() == nil {
					return // no slot needs it
				}
				if !errors.Is(err, perdure.ErrRolledBack) {
					t.Errorf("-worker.seed=%d: slot %d at clock %d: %v", *seed, slot, s.clock, err)
					return
				}
				clear(s.seen)
				if s.clock, err = w.Clock(c.ctx); err != nil {
					t.Error(err)
					return
				}
			}
		})
		<-done
	})
}

// stormSlot is one slot's program. In every clock it adds 1 to its own column of all rows.
type stormSlot struct {
	c       *cluster
	w       *worker.Client
	t       *worker.Table
	slot    int
	rng     *rand.Rand
	clock   perdure.Clock
	flushed int // number of rows that have this clock's 1
	seen    map[perdure.RowID]stormRow
}

// iterate does one clock.
func (s *stormSlot) iterate() error {
	ids := manyIDs(40)
	for i := 0; !s.t.Spec().Sparse && i < len(ids); i++ {
		ids[i] = perdure.RowID(i)
	}
	delta := make([]float32, len(ids)*dim)
	for i := range ids {
		delta[i*dim+s.slot] = 1
	}
	s.flushed = 0
	for s.flushed < len(ids) {
		n := min(len(ids)-s.flushed, 1+s.rng.IntN(20))
		some := ids[s.rng.IntN(len(ids)):]
		some = some[:1+s.rng.IntN(len(some))]
		var err error
		switch s.rng.IntN(6) {
		case 0:
			err = s.t.Prefetch(some)
		case 1:
			s.t.Forget()
		case 2, 3:
			err = s.read(ids, some)
		case 4:
			err = s.t.IncRows(ids[s.flushed:s.flushed+n], delta[:n*dim])
			s.flushed += n
		case 5:
			err = s.t.Flush()
		}
		if err != nil {
			return err
		}
		s.c.pass(time.Duration(s.rng.IntN(1000)) * time.Microsecond)
	}
	if s.rng.IntN(4) == 0 {
		if err := s.t.Flush(); err != nil {
			return err
		}
	}
	next, err := s.w.Clock(s.c.ctx)
	if err == nil && next != s.clock+1 {
		clear(s.seen)
	}
	s.clock = next
	return err
}

// read reads rows and checks them.
func (s *stormSlot) read(ids, some []perdure.RowID) error {
	got := make([]float32, len(some)*dim)
	if err := s.t.GetRows(s.c.ctx, some, got); err != nil {
		return err
	}
	if s.seen == nil {
		s.seen = map[perdure.RowID]stormRow{}
	}
	own := map[perdure.RowID]float32{}
	for i, id := range ids {
		if own[id] = float32(s.clock); i < s.flushed {
			own[id]++
		}
	}
	for i, id := range some {
		row, before := stormRow(got[i*dim:(i+1)*dim]), s.seen[id]
		for slot, v := range row {
			least := float32(0)
			switch m := s.c.job.Consistency; m.Kind {
			case perdure.BSP:
				least = float32(s.clock)
			case perdure.SSP, perdure.ESSP:
				least = float32(s.clock - m.Staleness)
			}
			if slot == s.slot && v != own[id] || v < least || v < before[slot] ||
				s.c.job.Consistency.Kind == perdure.BSP && slot != s.slot && v != least {
				return fmt.Errorf("row %d contains %v clocks of the slots; own %v, at least %v, before that %v", id,
					row, own[id], least, before)
			}
		}
		s.seen[id] = row
	}
	return nil
}
