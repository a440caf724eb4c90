package scar_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/scar"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/table"
)

// BenchmarkChoose compares a choice among 100 MB of dense rows of 64 floats, all of which have
// changed, with adding up all their values: once plainly, once with the vector kernel that
// reads the fastest. What is reported are the quotients of the least times.
func BenchmarkChoose(b *testing.B) {
	const dim, rows = 64, 100 << 20 / 256
	for _, by := range selectors {
		for _, share := range []float64{1, 1.0 / 8} {
			b.Run(fmt.Sprintf("%s/%.3f", by, share), func(b *testing.B) {
				p := dense(0, rows, dim, perdure.InitUniform)
				parts := []*table.Part{p}
				delta := make([]float32, rows*dim)
				for i := range delta {
					delta[i] = float32(i%1013) / 1000
				}
				l := scar.New(scar.Settings{Selector: by, Share: share})
				l.Added(0, p)
				plain, vector, choose := time.Hour, time.Hour, time.Hour
				best := func(least *time.Duration, f func()) {
					began := time.Now()
					f()
					*least = min(*least, time.Since(began))
				}
				var c *scar.Choice
				sink := 0.0
				b.ResetTimer()
				for i := 0; i < b.N || i < 5; i++ {
					if err := p.ApplyRows(p.First, nil, rows, delta, 1); err != nil {
						b.Fatal(err)
					}
					l.Changed(0, p, p.First, nil, rows)
					best(&plain, func() { sink += sum(p) })
					best(&vector, func() { v := p.Values(0, rows); sink += table.Gap(v, v) })
					best(&choose, func() { c = l.Choose(parts, 1) })
					l.Written(c, words.SegmentFile{Bytes: c.Bytes})
				}
				if sink == 1 {
					b.Fatal(sink)
				}
				b.ReportMetric(float64(choose.Microseconds()), "µs/choice")
				b.ReportMetric(float64(choose)/float64(plain), "plain-readings")
				b.ReportMetric(float64(choose)/float64(vector), "vector-readings")
			})
		}
	}
}

// sum adds up all values, four at a time.
func sum(p *table.Part) float64 {
	var s [4]float32
	v := p.Values(0, p.Stored())
	for len(v) >= 4 {
		s[0] += v[0]
		s[1] += v[1]
		s[2] += v[2]
		s[3] += v[3]
		v = v[4:]
	}
	return float64(s[0] + s[1] + s[2] + s[3])
}
