package outbox

import (
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
