package table

import (
	"fmt"
	"math"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// sameBits reports whether two vectors are equal bit for bit, where one NaN is as
// good as another: which of two NaNs an addition keeps depends on the machine.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

// floats draws values of every kind: ordinary ones, the edges, and any bits.
func floats() *rapid.Generator[float32] {
	edges := []float32{
		0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32,
		math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, // the smallest that is not subnormal
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1 << 24, 1<<24 - 1,
	}
	return rapid.OneOf(
		rapid.Float32Range(-10, 10),
		rapid.SampledFrom(edges),
		rapid.Map(rapid.Uint32(), math.Float32frombits),
	)
}

// naiveApply is the rule as one would write it down: row += delta, or
// row -= rate·delta, each operation rounded on its own.
func naiveApply(rule perdure.Rule, rows, delta []float32, clock perdure.Clock) []float32 {
	out := slices.Clone(rows)
	rate := rule.RateAt(clock)
	for i := range out {
		if rule.Kind == perdure.RuleAdd {
			sum := out[i] + delta[i]
			out[i] = sum
			continue
		}
		if rate == 0 {
			continue // changes nothing, whatever the delta
		}
		product := float32(rate * delta[i])
		out[i] -= product
	}
	return out
}

func rules() *rapid.Generator[perdure.Rule] {
	return rapid.SampledFrom([]perdure.Rule{
		{Kind: perdure.RuleAdd},
		{Kind: perdure.RuleSGD, Rate: 0.1},
		{Kind: perdure.RuleSGD, Rate: 3, Schedule: perdure.ScheduleSqrt},
		{Kind: perdure.RuleSGD, Rate: 1e30},
		{Kind: perdure.RuleSGD, Rate: 1e-42},                                                           // subnormal
		{Kind: perdure.RuleSGD, Rate: 1, Schedule: perdure.ScheduleStep, Every: 1, Factor: 1e-50},      // 1 at clock 0, then 0
		{Kind: perdure.RuleSGD, Rate: 0.5, Schedule: perdure.ScheduleStep, Every: 3, Factor: 0.333333}, // awkward
	})
}

// guarded returns a copy of v that begins at an address of its own alignment, and
// what lies around it.
func guarded(v []float32, offset int) (mine, all []float32) {
	all = make([]float32, offset+len(v)+4)
	for i := range all {
		all[i] = 12345
	}
	mine = all[offset : offset+len(v) : offset+len(v)]
	copy(mine, v)
	return mine, all
}

// Apply gives the bits of the naive loop, for every length and alignment that a
// vector kernel may treat differently, and touches nothing else.
func TestApplyBits(t *testing.T) {
	for n := range 68 {
		rapid.Check(quiet{t}, func(t *rapid.T) {
			rule := rules().Draw(t, "rule")
			clock := perdure.Clock(rapid.IntRange(0, 9).Draw(t, "clock"))
			rows := rapid.SliceOfN(floats(), n, n).Draw(t, "rows")
			delta := rapid.SliceOfN(floats(), n, n).Draw(t, "delta")
			want := naiveApply(rule, rows, delta, clock)
			offset := rapid.IntRange(0, 3).Draw(t, "offset")
			got, all := guarded(rows, offset)
			x, _ := guarded(delta, rapid.IntRange(0, 3).Draw(t, "delta's offset"))
			Apply(rule, 1, got, x, clock)
			if !sameBits(got, want) {
				t.Fatalf("%x\nwant %x", got, want)
			}
			if !sameBits(x, delta) {
				t.Fatal("the delta was changed")
			}
			for i, v := range all {
				if (i < offset || i >= offset+n) && v != 12345 {
					t.Fatalf("value %d of %d rows at %d was changed", i, n, offset)
				}
			}
		})
	}
}

// quiet keeps rapid from logging each length.
type quiet struct{ *testing.T }

func (quiet) Logf(string, ...any) {}

// This machine's kernel gives the portable loop's bits.
func TestAxpyLikePortable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.SliceOfN(floats(), 0, 200).Draw(t, "x")
		y := rapid.SliceOfN(floats(), len(x), len(x)).Draw(t, "y")
		a := floats().Draw(t, "a")
		want := slices.Clone(y)
		portableAxpy(a, x, want)
		got, _ := guarded(y, rapid.IntRange(0, 3).Draw(t, "offset"))
		axpy(a, x, got)
		if !sameBits(got, want) {
			t.Fatalf("a %x\nx    %x\ny    %x\ngot  %x\nwant %x", a, x, y, got, want)
		}
	})
}

// A product that is fused with the addition has other bits: the kernels round it.
func TestNothingIsFused(t *testing.T) {
	const a = 1 + 0x1p-12 // its square is 1 + 2^-11 + 2^-24, which rounds to 1 + 2^-11
	const rounded, fused = float32(0x1p-11), float32(0x1p-11 + 0x1p-24)
	if got := float32(math.FMA(a, a, -1)); got != fused || rounded == fused {
		t.Fatalf("the example does not tell them apart: %x", got)
	}
	for name, kernel := range map[string]func(a float32, x, y []float32){"axpy": axpy, "portableAxpy": portableAxpy} {
		for _, n := range []int{1, 4, 16, 67} {
			xs, ys := slices.Repeat([]float32{a}, n), slices.Repeat([]float32{-1}, n)
			kernel(a, xs, ys)
			for i, y := range ys {
				if y != rounded {
					t.Errorf("%s of %d: value %d is %x, want %x", name, n, i, y, rounded)
				}
			}
		}
	}
}

// BenchmarkApply compares the rules with a copy of as many bytes.
func BenchmarkApply(b *testing.B) {
	for _, n := range []int{1 << 14, 1 << 24} { // 64 KiB and 64 MiB
		x, y := make([]float32, n), make([]float32, n)
		for i := range x {
			x[i] = float32(i%7) * 0x1p-20
		}
		for _, kernel := range []struct {
			name string
			do   func()
		}{
			{"copy", func() { copy(y, x) }},
			{"add", func() { Apply(perdure.Rule{Kind: perdure.RuleAdd}, 1, y, x, 0) }},
			{"sgd", func() { Apply(perdure.Rule{Kind: perdure.RuleSGD, Rate: 0.5}, 1, y, x, 0) }},
			{"portable", func() { portableAxpy(-0.5, x, y) }},
		} {
			b.Run(fmt.Sprintf("%s/%dKiB", kernel.name, n*4>>10), func(b *testing.B) {
				b.SetBytes(int64(n) * 4)
				for b.Loop() {
					kernel.do()
				}
			})
		}
	}
}
