package table

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// contest times several ways to do the same, in turn, so that what else the
// machine does hits all of them alike, and returns the median duration of each.
func contest(b *testing.B, repeat int, ways ...func()) []float64 {
	b.Helper()
	took := make([][]float64, len(ways))
	for b.Loop() {
		for i, do := range ways {
			start := time.Now()
			for range repeat {
				do()
			}
			took[i] = append(took[i], time.Since(start).Seconds()/float64(repeat))
		}
	}
	medians := make([]float64, len(ways))
	for i, t := range took {
		slices.Sort(t)
		medians[i] = t[len(t)/2]
	}
	b.ReportMetric(0, "ns/op") // of all of them together: says nothing
	return medians
}

// plainly does something with the plain loops.
func plainly(do func()) func() {
	return func() {
		defer func(were bool) { vectors = were }(vectors)
		vectors = false
		do()
	}
}

// streams is how many vectors of the rows' size a rule reads and writes.
func streams(rule perdure.Rule) float64 {
	full, _ := StateShape(rule)
	return float64(2 + 1 + 2*full) // rows, update, state
}

// BenchmarkRules measures each rule on rows of 64 values, as many as fill 64 KiB
// (a near cache) and 64 MiB (none), beside the same in plain Go, and beside what
// the memory gives: y = x + y in the vector kernel of add, which reads two
// streams and writes one of them back and does next to nothing else, and a copy,
// which reads one stream and writes another. GB/s counts each stream that is read
// and each that is written. of-add and of-copy are shares of their GB/s.
func BenchmarkRules(b *testing.B) {
	const dim = 64
	clipped := perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.1, Decay: 1e-4, ClipNorm: 1}
	adamW := perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.001, Decay: 0.01, ClipNorm: 1}.WithDefaults()
	for _, size := range []struct {
		name string
		n    int
	}{{"64KiB", 1 << 14}, {"64MiB", 1 << 24}} {
		seed := sequence(1)
		x := make([]float32, size.n)
		g := seed.fill(size.n, func() float32 { return seed.ordinary() / 1000 })
		repeat := max(1, 1<<17/size.n)
		for _, rule := range append(slices.Concat(stateless, stateful), clipped, adamW) {
			name := string(rule.Kind)
			if rule.ClipNorm > 0 {
				name += "+decay+clip"
			}
			b.Run(name+"/"+size.name, func(b *testing.B) {
				p := newPlanes(rule, dim, size.n/dim, func() float32 { return 0 })
				u := newUpdater(rule, dim)
				do := func() { u.apply(p, g, 0) }
				took := contest(b, repeat, do, plainly(do), func() { add(p.values, g) }, func() { copy(x, g) })
				rate := func(i int, streams float64) float64 { return streams * 4 * float64(size.n) / took[i] / 1e9 }
				b.ReportMetric(rate(0, streams(rule)), "GB/s")
				b.ReportMetric(rate(0, streams(rule))/rate(2, 3), "of-add")
				b.ReportMetric(rate(0, streams(rule))/rate(3, 2), "of-copy")
				b.ReportMetric(took[1]/took[0], "x-plain")
			})
		}
	}
}

// BenchmarkFirstNonFinite measures the check of an update, one stream read.
func BenchmarkFirstNonFinite(b *testing.B) {
	for _, n := range []int{1 << 14, 1 << 24} {
		b.Run(fmt.Sprintf("%dKiB", n*4>>10), func(b *testing.B) {
			v := slices.Repeat([]float32{1}, n)
			do := func() { FirstNonFinite(v) }
			took := contest(b, max(1, 1<<17/n), do, plainly(do))
			b.ReportMetric(4*float64(n)/took[0]/1e9, "GB/s")
			b.ReportMetric(took[1]/took[0], "x-plain")
		})
	}
}

// BenchmarkSparseAdam measures updates of single rows of 64 values whose counts
// of updates differ, all in a near cache: what the bias corrections cost. few has
// counts below 1000, some to 30,000 and many to a million.
func BenchmarkSparseAdam(b *testing.B) {
	const dim, rows = 64, 256
	rule := perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.001}.WithDefaults()
	for _, counts := range []struct {
		name string
		most uint64
	}{{"few", 1000}, {"some", 30_000}, {"many", 1e6}} {
		b.Run(counts.name, func(b *testing.B) {
			seed := sequence(1)
			g := seed.fill(dim, seed.ordinary)
			mixed, alike := newPlanes(rule, dim, rows, seed.ordinary), newPlanes(rule, dim, rows, seed.ordinary)
			u := newUpdater(rule, dim)
			each := func(p planes, count func() float32) func() {
				return func() {
					for r := range rows {
						p.row[r] = count()
						u.apply(p.rows(dim, r, r+1), g, 0)
					}
				}
			}
			took := contest(b, 1,
				each(mixed, func() float32 { return float32(seed.bits() % counts.most) }),
				each(alike, func() float32 { seed.bits(); return 7 }))
			b.ReportMetric(took[0]/rows*1e9, "ns/row")
			b.ReportMetric(took[0]/took[1], "of-equal-counts")
		})
	}
}
