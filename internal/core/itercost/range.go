package itercost

import (
	"fmt"
	"math"
	"slices"
)

// Range is a number between Low and High. An unknown end is infinite.
type Range struct{ Low, High float64 }

// Exactly returns the Range of a known number.
func Exactly(v float64) Range { return Range{v, v} }

// unknown is the Range of an unknown number.
var unknown = Range{math.Inf(-1), math.Inf(1)}

// orUnknown returns the Range of a number, or unknown for NaN.
func orUnknown(v float64) Range {
	if math.IsNaN(v) {
		return unknown
	}
	return Exactly(v)
}

// Known reports whether the number is known.
func (r Range) Known() bool { return r.Low == r.High }

// minus returns the range of a difference.
func (r Range) minus(s Range) Range { return Range{r.Low - s.High, r.High - s.Low} }

// String returns the number or its range.
func (r Range) String() string {
	switch {
	case r.Known():
		return fmt.Sprintf("%.4g", r.Low)
	case r == unknown:
		return "unknown"
	case math.IsInf(r.High, 1):
		return fmt.Sprintf("≥ %.4g", r.Low)
	case math.IsInf(r.Low, -1):
		return fmt.Sprintf("≤ %.4g", r.High)
	}
	return fmt.Sprintf("%.4g to %.4g", r.Low, r.High)
}

// median returns the range of the median of at least one number. A median does not fall when a number rises, so its
// ends are the medians of the ends, and the range is as narrow as possible.
func median(numbers []Range) Range {
	lows, highs := make([]float64, len(numbers)), make([]float64, len(numbers))
	for i, r := range numbers {
		lows[i], highs[i] = r.Low, r.High
	}
	return Range{middle(lows), middle(highs)}
}

// middle sorts numbers and returns their median. For an even count, this is the mean of the two middle numbers.
func middle(v []float64) float64 {
	slices.Sort(v)
	a, b := v[(len(v)-1)/2], v[len(v)/2]
	if a == b { // also where both are infinite
		return a
	}
	return (a + b) / 2
}
