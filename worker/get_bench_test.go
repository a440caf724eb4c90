package worker_test

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/transport"
)

// BenchmarkCachedGet repeatedly reads one row of 64 values from the cache: under essp the row is pushed, under ssp it
// is fresh enough.
func BenchmarkCachedGet(b *testing.B) {
	for _, model := range []string{"ssp:2", "essp:2"} {
		b.Run(model, func(b *testing.B) {
			ctx, w := overSockets(b, model, transport.TCP{}, time.Minute, nil)
			table, err := w.Table(ctx, perdure.TableSpec{
				Name: "t", Rows: 1000, Dim: 64,
				Rule: perdure.Rule{Kind: perdure.RuleAdd},
			})
			if err != nil {
				b.Fatal(err)
			}
			row := make([]float32, 64)
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := table.Get(ctx, perdure.RowID(i%1000), row); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
