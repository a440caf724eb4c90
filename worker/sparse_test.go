package worker_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/testcluster"
	"github.com/perdure/perdure/worker"
)

// sparsely makes the test table sparse.
func sparsely(s *perdure.TableSpec) { s.Sparse, s.Rows = true, 0 }

// naiveMap is the expected content of a table that only one slot changes. Rows are initially zero, and any row may
// exist.
type naiveMap struct {
	values  map[perdure.RowID][dim]float32
	scale   float32
	flushed map[perdure.RowID]bool // in this clock
}

func (n *naiveMap) inc(row perdure.RowID, delta []float32) {
	v := n.values[row]
	for i := range v {
		v[i] += n.scale * delta[i]
	}
	n.values[row] = v
}

func (n *naiveMap) list(ids []perdure.RowID) (out []float32) {
	for _, id := range ids {
		v := n.values[id]
		out = append(out, v[:]...)
	}
	return out
}

// drawIDs draws IDs from a few rows, so that rows repeat, sometimes within one list. IDs of a sparse table are
// arbitrary.
func drawIDs(rng *rand.Rand, sparse bool) []perdure.RowID {
	ids := make([]perdure.RowID, 1+rng.IntN(2*rows))
	for i := range ids {
		ids[i] = perdure.RowID(rng.IntN(rows))
		if sparse {
			ids[i] *= 0x1234_5678_9abc_def1
		}
	}
	return ids
}

// drawnListOp performs one operation on both the table and the naive model.
func drawnListOp(c *cluster, t *worker.Table, n *naiveMap, rng *rand.Rand) (what string, got, want []float32) {
	ids := drawIDs(rng, t.Spec().Sparse)
	delta := make([]float32, len(ids)*dim)
	for i := range delta {
		delta[i] = float32(rng.IntN(7) - 3)
	}
	var err error
	switch op := rng.IntN(8); op {
	case 0:
		what, got, want = fmt.Sprintf("Get(%d)", ids[0]), make([]float32, dim), n.list(ids[:1])
		err = t.Get(c.ctx, ids[0], got)
	case 1, 2:
		what, got, want = fmt.Sprintf("GetRows(%d)", ids), make([]float32, len(ids)*dim), n.list(ids)
		err = t.GetRows(c.ctx, ids, got)
	case 3, 4:
		ids = slices.DeleteFunc(ids, func(id perdure.RowID) bool { return n.flushed[id] })
		for i, id := range ids {
			n.inc(id, delta[i*dim:(i+1)*dim])
		}
		err = t.IncRows(ids, delta[:len(ids)*dim])
	case 5:
		err = t.Prefetch(ids)
	case 6:
		t.Forget()
	case 7:
		if rng.IntN(3) == 0 {
			for id := range n.values {
				n.flushed[id] = true // possibly more rows than necessary
			}
			err = t.Flush()
		}
	}
	if err != nil {
		c.Fatal(err)
	}
	return what, got, want
}

// TestReadYourWritesEverywhere checks that a single slot reads its own writes immediately and permanently, in sparse
// and dense tables. It covers rows that were flushed, prefetched or forgotten, one or several connections, connections
// that break, and delayed frames. All numbers are exact in float32.
func TestReadYourWritesEverywhere(t *testing.T) {
	for _, model := range []string{"bsp", "ssp:0", "ssp:2", "asp"} {
		for _, sparse := range []bool{false, true} {
			for _, rule := range []perdure.Rule{{Kind: perdure.RuleAdd}, {Kind: perdure.RuleSGD, Rate: 0.5}} {
				for _, breaks := range []float64{0, 0.01} {
					t.Run(fmt.Sprintf("%s/%s/sparse=%v/breaks=%v", model, rule.Kind, sparse, breaks),
						func(t *testing.T) {
							readYourWrites(t, model, sparse, rule, breaks)
						})
				}
			}
		}
	}
}

func readYourWrites(t *testing.T, model string, sparse bool, rule perdure.Rule, breaks float64) {
	inCluster(t, model, "none", 1, 0, func(c *cluster) {
		net := &lazyNetwork{
			Network: c.Net.Host("worker:0"), t: t, rng: rand.New(rand.NewPCG(*seed, 7)), breaks: breaks,
			most: time.Millisecond,
		}
		w := c.dial("worker:0", perdure.NoSlot,
			func(cfg *testcluster.DialConfig) { cfg.Network, cfg.Connections = net, 3 })
		table := c.table(w, func(s *perdure.TableSpec) {
			s.Rule = rule
			if sparse {
				sparsely(s)
			}
		})
		n := &naiveMap{values: map[perdure.RowID][dim]float32{}, flushed: map[perdure.RowID]bool{}, scale: 1}
		if rule.Kind == perdure.RuleSGD {
			n.scale = -0.5
		}
		rng := rand.New(rand.NewPCG(*seed, 5))
		clock := perdure.Clock(0)
		for op := range 400 {
			if what, got, want := drawnListOp(c, table, n, rng); !slices.Equal(got, want) {
				t.Fatalf("-worker.seed=%d: operation %d at clock %d: %s gave %v, want %v", *seed, op, clock, what, got,
					want)
			}
			if rng.IntN(4) == 0 {
				clock++
				c.clock(w, clock)
				clear(n.flushed)
			}
			if rng.IntN(4) == 0 {
				c.pass(time.Millisecond)
			}
		}
		if breaks > 0 && net.breakings() == 0 {
			t.Error("no connection broke")
		}
	})
}
