package table

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/perdure/perdure"
)

// rounds are the durations in seconds of several alternatives, round by round.
type rounds [][]float64

// contest times several alternatives in turn, in each position equally often, so that other load on the machine affects
// all of them equally.
func contest(b *testing.B, repeat int, ways ...func()) (took rounds) {
	b.Helper()
	for b.Loop() {
		round := make([]float64, len(ways))
		for i := range ways {
			way := (i + len(took)) % len(ways)
			start := time.Now()
			for range repeat {
				ways[way]()
			}
			round[way] = time.Since(start).Seconds() / float64(repeat)
		}
		took = append(took, round)
	}
	b.ReportMetric(0, "ns/op") // of all together: meaningless
	return took
}

// median returns the median of f over the rounds.
func (r rounds) median(f func(round []float64) float64) float64 {
	var all []float64
	for _, round := range r {
		all = append(all, f(round))
	}
	slices.Sort(all)
	return all[len(all)/2]
}

// seconds returns the median duration of an alternative.
func (r rounds) seconds(way int) float64 {
	return r.median(func(round []float64) float64 { return round[way] })
}

// gain returns the median ratio of another alternative's duration to that of alternative 0 in the same round.
func (r rounds) gain(other int) float64 {
	return r.median(func(round []float64) float64 { return round[other] / round[0] })
}

// plainly runs a function with the plain loops.
func plainly(do func()) func() {
	return func() {
		defer func(were bool) { vectors = were }(vectors)
		vectors = false
		do()
	}
}

// streams returns the number of vectors of the rows' size that a rule reads and writes.
func streams(rule perdure.Rule) float64 {
	full, _ := StateShape(rule)
	return float64(2 + 1 + 2*full) // rows, update, state
}

// BenchmarkRules measures each rule on rows of 64 values that fill 64 KiB (a near cache) and 64 MiB (no cache). It
// compares them with plain Go and with the memory's speed: y = x + y in the vector kernel of add, which reads two
// streams and writes one, with hardly any other work, and a copy, which reads one stream and writes another. GB/s
// counts each stream read and each written. of-add and of-copy are shares of their GB/s in the same round; x-plain is
// the ratio of the plain loops' duration.
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
				b.ReportMetric(streams(rule)*4*float64(size.n)/took.seconds(0)/1e9, "GB/s")
				b.ReportMetric(took.gain(2)*streams(rule)/3, "of-add")
				b.ReportMetric(took.gain(3)*streams(rule)/2, "of-copy")
				b.ReportMetric(took.gain(1), "x-plain")
			})
		}
	}
}

// BenchmarkFirstNonFinite measures the check of an update, which reads one stream.
func BenchmarkFirstNonFinite(b *testing.B) {
	for _, n := range []int{1 << 14, 1 << 24} {
		b.Run(fmt.Sprintf("%dKiB", n*4>>10), func(b *testing.B) {
			v := slices.Repeat([]float32{1}, n)
			do := func() { FirstNonFinite(v) }
			took := contest(b, max(1, 1<<17/n), do, plainly(do))
			b.ReportMetric(4*float64(n)/took.seconds(0)/1e9, "GB/s")
			b.ReportMetric(took.gain(1), "x-plain")
		})
	}
}

// BenchmarkSparseAdam measures updates of single rows of 64 values, all in a near cache. It compares rows with equal
// update counts and rows with counts up to 30,000, which need separate bias corrections.
func BenchmarkSparseAdam(b *testing.B) {
	const dim, rows = 64, 256
	rule := perdure.Rule{Kind: perdure.RuleAdam, Rate: 0.001}.WithDefaults()
	seed := sequence(1)
	g := seed.fill(dim, seed.ordinary)
	u := newUpdater(rule, dim)
	each := func(most uint64) func() {
		p := newPlanes(rule, dim, rows, seed.ordinary)
		return func() {
			for r := range rows {
				p.row[r] = float32(seed.bits() % most)
				u.apply(p.rows(dim, r, r+1), g, 0)
			}
		}
	}
	took := contest(b, 1, each(30_000), each(1))
	b.ReportMetric(took.seconds(0)/rows*1e9, "ns/row")
	b.ReportMetric(1/took.gain(1), "x-equal-counts")
}
