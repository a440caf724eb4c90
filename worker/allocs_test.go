//go:build !race

// The race detector makes the compiler and sync.Pool allocate more.

package worker_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
	"github.com/perdure/perdure/worker"
)

// TestAllocations checks that in steady state, reads, answers, updates and their acknowledgements allocate nothing on
// either side, except for what most accounts for below.
func TestAllocations(t *testing.T) {
	const dim = 64
	for model, sock := range map[string]transport.TCP{
		"asp":         {Socket: transport.SocketTCP},
		"ssp:1000000": {Socket: transport.SocketUnix},
	} {
		for _, c := range []struct {
			name   string
			sparse bool
			rows   int
		}{
			{"dense small", false, 16},
			{"dense large", false, 2048},
			{"sparse small", true, 16},
			{"sparse large", true, 2048},
		} {
			ctx, w := overSockets(t, model, sock, time.Minute, nil) // the coordinator receives no reports meanwhile
			spec := perdure.TableSpec{Name: "t", Rows: 8192, Dim: dim, Rule: perdure.Rule{Kind: perdure.RuleAdd}}
			if c.sparse {
				sparsely(&spec)
			}
			table, err := w.Table(ctx, spec)
			if err != nil {
				t.Fatal(err)
			}
			measureAllocations(ctx, t, model+" "+c.name, w, table, c.rows)
			w.Close()
		}
	}
}

func measureAllocations(ctx context.Context, t *testing.T, name string, w *worker.Client, table *worker.Table, n int) {
	ids, values := make([]perdure.RowID, n), make([]float32, n*table.Spec().Dim)
	for i := range ids {
		ids[i] = perdure.RowID(i)
	}
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	pull := func() { must(table.GetRows(ctx, ids, values)) }
	push := func() {
		must(table.IncRows(ids, values))
		_, err := w.Clock(ctx)
		must(err)
		must(w.Settle(ctx))
	}
	if !table.Spec().Sparse {
		pull = func() { must(table.GetRun(ctx, 0, values)) }
	}
	fresh := func() { table.Forget(); pull() }
	for range 20 {
		push()
		fresh()
	}
	// The rest of 512 KiB: if the socket does not accept everything, a goroutine writes the remainder, and queues may
	// grow beyond their earlier length.
	most := 0.0
	if len(values) > 100_000 {
		most = 3
	}
	cached, pulled, pushed := 0.0, fewest(fresh, most), fewest(push, most)
	if spec := table.Spec(); !spec.Sparse || spec.Consistency.Kind == perdure.SSP { // other tables do not cache the row
		cached = fewest(pull, 0)
	}
	t.Logf("%s: cached %v, pull %v, push %v", name, cached, pulled, pushed)
	if cached > 0 || pulled > most || pushed > most {
		t.Errorf("%s: %v allocations for cached rows, %v for a pull, %v for a push; want 0, and for the others at "+
			"most %v", name, cached, pulled, pushed, most)
	}
}

// fewest returns the min number of allocations of f in the whole process, because others may allocate at any time. It
// measures until the number is at most enough, or ten times.
func fewest(f func(), enough float64) float64 {
	n := math.Inf(1)
	for i := 0; i < 10 && n > enough; i++ {
		n = min(n, testing.AllocsPerRun(50, f))
	}
	return n
}
