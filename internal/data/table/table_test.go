package table

import (
	"math"
	"slices"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// sameBits reports whether two vectors are equal bit for bit, with all NaN considered equal: which of two NaN an
// addition returns depends on the machine.
func sameBits(a, b []float32) bool {
	return slices.EqualFunc(a, b, func(x, y float32) bool {
		return math.Float32bits(x) == math.Float32bits(y) || x != x && y != y
	})
}

// floats draws values of every kind: ordinary ones, edge cases, and arbitrary bits.
func floats() *rapid.Generator[float32] {
	edges := []float32{
		0, float32(math.Copysign(0, -1)), 1, -1, math.MaxFloat32, -math.MaxFloat32,
		math.SmallestNonzeroFloat32, -math.SmallestNonzeroFloat32, 0x1p-126, // smallest normal number
		float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()), 1 << 24, 1<<24 - 1,
	}
	return rapid.OneOf(
		rapid.Float32Range(-10, 10),
		rapid.SampledFrom(edges),
		rapid.Map(rapid.Uint32(), math.Float32frombits),
	)
}

// naiveApply is the naive rule: row += delta, or row -= rate·delta, each operation rounded on its own.
func naiveApply(rule perdure.Rule, rows, delta []float32, clock perdure.Clock) []float32 {
	out := slices.Clone(rows)
	rate := rule.RateAt(clock)
	for i := range out {
		if rule.Kind == perdure.RuleAdd {
			sum := out[i] + delta[i]
			out[i] = sum
			continue
		}
		if rule.Kind == perdure.RuleSet {
			out[i] = delta[i]
			continue
		}
		product := float32(rate * delta[i])
		out[i] -= product
	}
	return out
}

func rules() *rapid.Generator[perdure.Rule] {
	return rapid.SampledFrom([]perdure.Rule{
		{Kind: perdure.RuleAdd},
		{Kind: perdure.RuleSet},
		{Kind: perdure.RuleSGD, Rate: 0.1},
		{Kind: perdure.RuleSGD, Rate: 3, Schedule: perdure.ScheduleSqrt},
		{Kind: perdure.RuleSGD, Rate: 1e30},
		{Kind: perdure.RuleSGD, Rate: 1e-42}, // subnormal
		// 1 at clock 0, then 0
		{Kind: perdure.RuleSGD, Rate: 1, Schedule: perdure.ScheduleStep, Every: 1, Factor: 1e-50},
		{Kind: perdure.RuleSGD, Rate: 0.5, Schedule: perdure.ScheduleStep, Every: 3, Factor: 0.333333}, // awkward
	})
}

// guarded returns a copy of v at an address with its own alignment, and the memory around it.
func guarded(v []float32, offset int) (mine, all []float32) {
	all = make([]float32, offset+len(v)+4)
	for i := range all {
		all[i] = 12345
	}
	mine = all[offset : offset+len(v) : offset+len(v)]
	copy(mine, v)
	return mine, all
}
