package itercost

import (
	"fmt"
	"math"
	"slices"
)

// Range is a number of which it may be known only that it is at least Low and at
// most High. An end that is not known is infinite.
type Range struct{ Low, High float64 }

// Exactly is a number that is known.
func Exactly(v float64) Range { return Range{v, v} }

// unknown is a number of which nothing is known.
var unknown = Range{math.Inf(-1), math.Inf(1)}

// orUnknown is a number that is known unless it is NaN.
func orUnknown(v float64) Range {
	if math.IsNaN(v) {
		return unknown
	}
	return Exactly(v)
}

// Known reports whether the number is known.
func (r Range) Known() bool { return r.Low == r.High }

// minus is what is known of a difference.
func (r Range) minus(s Range) Range { return Range{r.Low - s.High, r.High - s.Low} }

// String writes the number, or what is known of it.
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

// median is what is known of the median of numbers, of which there is one at
// least. A median does not fall when a number rises, so its ends are the medians
// of the ends, and no closer ones are true.
func median(numbers []Range) Range {
	lows, highs := make([]float64, len(numbers)), make([]float64, len(numbers))
	for i, r := range numbers {
		lows[i], highs[i] = r.Low, r.High
	}
	return Range{middle(lows), middle(highs)}
}

// middle sorts numbers, and returns their median: of an even number of them, the
// mean of the two in the middle.
func middle(v []float64) float64 {
	slices.Sort(v)
	a, b := v[(len(v)-1)/2], v[len(v)/2]
	if a == b { // also where both are infinite
		return a
	}
	return (a + b) / 2
}
