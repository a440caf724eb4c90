package itercost

import (
	"fmt"
	"math"
)

// Pair is what one failure cost under each of two strategies. Both costs are
// against the same undisturbed run, which falls out of their difference: so two
// strategies are compared within pairs, and not by their means.
type Pair struct{ First, Second Cost }

// difference is what is known of how much more the first cost.
func (p Pair) difference() Range { return p.First.Range().minus(p.Second.Range()) }

// Comparison is how two strategies compare over the same failures.
type Comparison struct {
	Pairs    int
	Censored int // pairs of which at least one cost is

	// Difference and Ratio are of the pairs that are not censored: the mean of first
	// less second, and the mean of the first over that of the second. Both are NaN
	// where all are censored, and Ratio also where a mean is not above 0.
	Difference, Ratio float64

	// MedianDifference is of all pairs. So is Less: the share of them in which the
	// first cost less, those with equal costs counted by half. That is the sign test's
	// statistic, and 1/2 says that no strategy is better. Of a pair that
	// censoring leaves undecided, all that may be true is in the range.
	MedianDifference, Less Range
}

// Compare compares two strategies.
func Compare(pairs []Pair) (Comparison, error) {
	if len(pairs) == 0 {
		return Comparison{}, fmt.Errorf("%w: there are no pairs", ErrSample)
	}
	first, _ := decided(pairs)
	return Comparison{
		Pairs: len(pairs), Censored: len(pairs) - len(first), Difference: difference(pairs), Ratio: ratio(pairs),
		MedianDifference: medianDifference(pairs), Less: less(pairs),
	}, nil
}

// decided are the costs of the pairs of which both are known.
func decided(pairs []Pair) (first, second []Cost) {
	for _, p := range pairs {
		if !p.First.Censored && !p.Second.Censored {
			first, second = append(first, p.First), append(second, p.Second)
		}
	}
	return first, second
}

// difference is the mean of first less second over the pairs that are known.
func difference(pairs []Pair) float64 {
	first, second := decided(pairs)
	return mean(first) - mean(second)
}

// ratio is the mean of the first over that of the second, over the pairs that are known.
func ratio(pairs []Pair) float64 {
	first, second := decided(pairs)
	a, b := mean(first), mean(second)
	if !(a > 0 && b > 0) { // a failure that helped is no multiple of one that cost
		return math.NaN()
	}
	return a / b
}

func medianDifference(pairs []Pair) Range {
	ranges := make([]Range, len(pairs))
	for i, p := range pairs {
		ranges[i] = p.difference()
	}
	return median(ranges)
}

func less(pairs []Pair) (share Range) {
	score := func(difference float64) float64 {
		switch {
		case difference < 0:
			return 1
		case difference == 0:
			return 0.5
		}
		return 0
	}
	for _, p := range pairs {
		d := p.difference()
		share.Low += score(d.High)
		share.High += score(d.Low)
	}
	n := float64(len(pairs))
	return Range{share.Low / n, share.High / n}
}
