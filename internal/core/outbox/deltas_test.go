package outbox

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/perdure/perdure"
)

// Memory that only a burst of updates needed is released once it has been unused.
func TestDeltasForgetBursts(t *testing.T) {
	left := 1 << 20
	d := Deltas{of: &Table{}}
	d.init(perdure.TableSpec{Dim: 4}, 0, 8, &left)
	use := func(n int) { // n updates at the same time
		var taken []memory
		for range n {
			d.AddRun(0, 8, make([]float32, 32))
			taken = append(taken, memory{d.values, nil})
			d.values = nil
			d.reset()
		}
		for _, m := range taken {
			d.recycle(m)
		}
	}
	for i, step := range []struct{ use, spare int }{{10, 10}, {3, 3}, {3, 3}, {0, 0}} {
		use(step.use)
		d.trim()
		bytes := 0
		for _, m := range d.spare {
			bytes += m.bytes()
		}
		if len(d.spare) != step.spare || left+bytes != 1<<20 {
			t.Errorf("step %d: %d spare, want %d; %d bytes kept, %d allowed",
				i, len(d.spare), step.spare, bytes, left)
		}
	}
}

// TestPositions compares positions with a map.
func TestPositions(t *testing.T) {
	rng := rand.New(rand.NewPCG(*firstSeed, 1))
	for range 300 {
		want, base := map[perdure.RowID]int{}, perdure.RowID(rng.Uint64())
		row := func(spread uint64) perdure.RowID { return base + perdure.RowID(rng.Uint64N(spread)) }
		spread := []uint64{10, 200, 1 << 20, math.MaxUint64}[rng.IntN(4)]
		var ids []perdure.RowID
		for range rng.IntN(30) {
			if id := row(spread); want[id] == 0 {
				ids = append(ids, id)
				want[id] = len(ids) // 1 + the position
			}
		}
		p := newPositions(ids)
		for range 5 { // rows that are added later
			if id := row(max(spread, 1<<62)); want[id] == 0 {
				want[id] = len(want) + 1
				p.set(id, want[id]-1)
			}
		}
		for id, at := range want {
			if got, ok := p.at(id); !ok || got != at-1 {
				t.Fatalf("row %d of %v: %d, %t; want %d", id, ids, got, ok, at-1)
			}
		}
		for range 50 {
			if id := row(spread); want[id] == 0 {
				if got, ok := p.at(id); ok {
					t.Fatalf("row %d of %v: %d; it is missing", id, ids, got)
				}
			}
		}
	}
}
