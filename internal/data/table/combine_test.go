package table

import (
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// naiveSum is a naive DeltaSum: rows in the order of their first touch, each float32 operation rounded on its own.
type naiveSum struct {
	ids  []perdure.RowID
	sums map[perdure.RowID][]float32
}

func (n *naiveSum) add(id perdure.RowID, g []float32, share float32) {
	sum, there := n.sums[id]
	if !there {
		n.ids = append(n.ids, id)
	}
	for i, v := range g {
		v = float32(v * share)
		if there {
			sum[i] += v
		} else {
			sum = append(sum, v)
		}
	}
	n.sums[id] = sum
}

// TestSum: for any updates, by runs and by lists, a DeltaSum has exactly the rows that they touch, with the bits of
// successive additions. It can be reused.
func TestSum(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := perdure.TableSpec{
			Name: "w", Dim: rapid.IntRange(1, 5).Draw(t, "dim"), Sparse: rapid.Bool().Draw(t, "sparse"),
			Rule: perdure.Rule{Kind: perdure.RuleAdd},
		}
		first, rows := perdure.RowID(100), 30
		p := New(spec, 0, 1, first, rows)
		s := NewDeltaSum(spec, first, rows)
		for range rapid.IntRange(1, 3).Draw(t, "clocks") {
			want := naiveSum{sums: map[perdure.RowID][]float32{}}
			for range rapid.IntRange(0, 4).Draw(t, "updates") {
				share := rapid.SampledFrom([]float32{1, 0.5, 1.0 / 3, 0.1}).Draw(t, "share")
				from := first + perdure.RowID(rapid.IntRange(0, rows-1).Draw(t, "from"))
				n := rapid.IntRange(0, rows-int(from-first)).Draw(t, "n")
				var ids []perdure.RowID
				if spec.Sparse || rapid.Bool().Draw(t, "list") {
					ids = rapid.SliceOfN(rapid.Custom(func(t *rapid.T) perdure.RowID {
						return first + perdure.RowID(rapid.IntRange(0, rows-1).Draw(t, "id"))
					}), 0, 10).Draw(t, "ids")
					n = len(ids)
				}
				g := rapid.SliceOfN(rapid.Float32(), n*spec.Dim, n*spec.Dim).Draw(t, "g")
				if err := p.CheckRows(from, ids, n, len(g)); err != nil {
					t.Fatal(err)
				}
				s.Add(from, ids, n, g, share)
				for i := range n {
					id := from + perdure.RowID(i)
					if ids != nil {
						id = ids[i]
					}
					want.add(id, g[i*spec.Dim:(i+1)*spec.Dim], share)
				}
			}
			var got []perdure.RowID
			s.Flush(func(from perdure.RowID, ids []perdure.RowID, n int, sums []float32) {
				if err := p.CheckRows(from, ids, n, len(sums)); err != nil || n == 0 {
					t.Fatalf("%d rows from %d, %v: %v", n, from, ids, err)
				}
				for i := range n {
					id := from + perdure.RowID(i)
					if ids != nil {
						id = ids[i]
					}
					got = append(got, id)
					for k, v := range sums[i*spec.Dim : (i+1)*spec.Dim] {
						if w := want.sums[id][k]; math.Float32bits(v) != math.Float32bits(w) && (v == v || w == w) {
							t.Fatalf("row %d has %v at %d, want %v", id, v, k, w)
						}
					}
				}
			})
			if !slices.Equal(got, want.ids) {
				t.Fatalf("rows %v, want %v", got, want.ids)
			}
		}
	})
}

// TestSumMemory: in steady state a DeltaSum does not allocate, and the memory of a large clock is released at the next
// one.
func TestSumMemory(t *testing.T) {
	for _, sparse := range []bool{false, true} {
		spec := perdure.TableSpec{Name: "w", Dim: 8, Sparse: sparse, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
		s := NewDeltaSum(spec, 0, 1000)
		var ids []perdure.RowID
		for i := range 1000 {
			ids = append(ids, perdure.RowID(i))
		}
		g := make([]float32, 8000)
		turn := func(rows int) {
			for range 2 {
				s.Add(0, ids[:rows], rows, g[:8*rows], 0.5)
			}
			s.Flush(func(perdure.RowID, []perdure.RowID, int, []float32) {})
		}
		turn(1000)
		if n := testing.AllocsPerRun(10, func() { turn(1000) }); n != 0 {
			t.Errorf("sparse %v: a clock allocates %v times", sparse, n)
		}
		turn(10)
		if cap(s.values) != 0 {
			t.Errorf("sparse %v: after a clock of 10 rows, capacity for %d values", sparse, cap(s.values))
		}
		turn(0)
		turn(10)
		if turn(0); cap(s.values) == 0 {
			t.Errorf("sparse %v: a clock without updates releases memory in use", sparse)
		}
	}
}
