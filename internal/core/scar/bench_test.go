package scar_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/scar"
	"github.com/perdure/perdure/internal/data/table"
)

// chooseBytes is the size of the values to choose from.
const chooseBytes = 100 << 20

// BenchmarkChoose chooses among 100 MB of rows, all of which have been updated, and compares that with reading their
// values once at the same time: their sum in plain Go, and the distance kernel comparing memory with itself.
func BenchmarkChoose(b *testing.B) {
	for _, dim := range []int{64, 8, 1} {
		for _, by := range selectors {
			for _, share := range []float64{1, 1.0 / 8} {
				b.Run(fmt.Sprintf("dim%d/%s/%.3f", dim, by, share), func(b *testing.B) {
					benchmarkChooseDense(b, dense(0, chooseBytes/4/dim, dim, perdure.InitUniform), by, share)
				})
			}
		}
	}
}

// BenchmarkChooseWhole is BenchmarkChoose for a whole table.
func BenchmarkChooseWhole(b *testing.B) {
	for _, dim := range []int{64, 8, 1} {
		b.Run(fmt.Sprintf("dim%d", dim), func(b *testing.B) {
			p := dense(0, chooseBytes/4/dim, dim, perdure.InitUniform)
			p.Spec.Whole = true
			benchmarkChooseDense(b, p, perdure.SelectPriority, 1)
		})
	}
}

func benchmarkChooseDense(b *testing.B, p *table.Part, by perdure.Selector, share float64) {
	delta := make([]float32, chooseBytes/4)
	for i := range delta {
		delta[i] = float32(i%1013) / 1000
	}
	benchmarkChoose(b, p, by, share, func(l *scar.Ledger) {
		if err := p.ApplyRows(p.First, nil, p.Rows, delta, 1); err != nil {
			b.Fatal(err)
		}
		l.Changed(0, p, p.First, nil, p.Rows)
	})
}

// BenchmarkChooseSparse is BenchmarkChoose for sparse rows of 16 values, a third of which are new each time.
func BenchmarkChooseSparse(b *testing.B) {
	const dim = 16
	for _, by := range selectors {
		b.Run(string(by), func(b *testing.B) {
			p := table.New(perdure.TableSpec{
				Name: "s", Sparse: true, Dim: dim, Evict: 3, Rule: perdure.Rule{Kind: perdure.RuleAdd},
			}, 0, 7, 0, 0)
			const rows = chooseBytes / 4 / dim / 3 // of one clock; three clocks' rows remain
			ids, delta := make([]perdure.RowID, rows), make([]float32, rows*dim)
			for i := range delta {
				delta[i] = float32(i%1013) / 1000
			}
			clock := perdure.Clock(0)
			benchmarkChoose(b, p, by, 1.0/8, func(l *scar.Ledger) {
				clock++
				for i := range ids {
					ids[i] = perdure.RowID(uint64(int(clock)*rows+i) * 0x9e3779b97f4a7c15)
				}
				if err := p.ApplyRows(0, ids, rows, delta, clock); err != nil {
					b.Fatal(err)
				}
				l.Changed(0, p, 0, ids, rows)
				gone := l.EvictionHook(0, p)
				p.Evict(clock, func(_ perdure.RowID, at int) { gone(at) })
			})
		})
	}
}

// benchmarkChoose reports median times, so that it compares measurements under the same load.
func benchmarkChoose(b *testing.B, p *table.Part, by perdure.Selector, share float64, update func(*scar.Ledger)) {
	l := scar.New(scar.Settings{Selector: by, Share: share})
	l.Added(0, p)
	var plain, vector, choose []float64
	time := func(of *[]float64, f func()) {
		began := time.Now()
		f()
		*of = append(*of, time.Since(began).Seconds())
	}
	median := func(of []float64) float64 { slices.Sort(of); return of[len(of)/2] }
	var c *scar.Choice
	sink := 0.0
	b.ResetTimer()
	for i := 0; i < b.N || i < 5; i++ {
		update(l)
		time(&plain, func() { sink += each(p, sum) })
		time(&vector, func() { sink += each(p, func(v []float32) float64 { return table.SquaredDistance(v, v) }) })
		time(&choose, func() { c = l.Choose([]*table.Part{p}, 1) })
		l.Written(c, protocol.SegmentFile{Bytes: c.Bytes})
	}
	if sink == 1 {
		b.Fatal(sink)
	}
	b.ReportMetric(1e6*median(choose), "µs/choice")
	b.ReportMetric(median(choose)/median(plain), "plain-readings")
	b.ReportMetric(median(choose)/median(vector), "vector-readings")
}

func each(p *table.Part, f func(values []float32) float64) (all float64) {
	for at := 0; at < p.Stored(); {
		v := p.Values(at, p.Stored()-at)
		all += f(v)
		at += len(v) / p.Spec.Dim
	}
	return all
}

func sum(v []float32) float64 {
	var s [4]float32
	for len(v) >= 4 {
		s[0] += v[0]
		s[1] += v[1]
		s[2] += v[2]
		s[3] += v[3]
		v = v[4:]
	}
	return float64(s[0] + s[1] + s[2] + s[3])
}

// BenchmarkResume resumes the ledger of 100 MB of restored rows.
func BenchmarkResume(b *testing.B) {
	p := dense(0, chooseBytes/4/64, 64, perdure.InitUniform)
	layer := [][]int32{make([]int32, p.Rows)}
	for b.Loop() {
		scar.Resume(scar.Settings{Selector: perdure.SelectPriority, Share: 1.0 / 8}, []*table.Part{p},
			[]protocol.SegmentFile{{File: "f", Bytes: chooseBytes}}, layer)
	}
}
