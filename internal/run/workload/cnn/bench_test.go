package cnn

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/dataset"
)

// BenchmarkTrainPlain measures the baseline that jobs are compared with: the same training on one thread, without a
// parameter server.
func BenchmarkTrainPlain(b *testing.B) {
	data, err := dataset.Embedded()
	if err != nil {
		b.Fatal(err)
	}
	for _, size := range []int{1, 32, 128} {
		b.Run(fmt.Sprintf("batch=%d", size), func(b *testing.B) {
			m, err := New(data, Options{Seed: 1, Slots: 1, Batch: size})
			if err != nil {
				b.Fatal(err)
			}
			p, err := NewPlain(m, perdure.Rule{Kind: perdure.RuleSGD, Rate: DefaultRate})
			if err != nil {
				b.Fatal(err)
			}
			b.ReportAllocs()
			b.ResetTimer()
			p.Run(perdure.Clock(b.N))
			b.ReportMetric(float64(b.N)*float64(size)/b.Elapsed().Seconds(), "samples/s")
		})
	}
}
