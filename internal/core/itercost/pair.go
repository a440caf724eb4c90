package itercost

import (
	"fmt"
	"math"
)

// Pair holds the costs of one failure under each of two strategies. Both costs refer to the same undisturbed run, which
// cancels in their difference. Strategies are therefore compared within pairs, not by their means.
type Pair struct{ First, Second Cost }

// difference returns the possible values of First minus Second.
func (p Pair) difference() Range { return p.First.Range().minus(p.Second.Range()) }

// Comparison compares two strategies over the same failures.
type Comparison struct {
	Pairs    int
	Censored int // pairs with at least one censored cost

	// Difference and Ratio cover the uncensored pairs: the mean of First minus Second, and the mean of First divided by
	// the mean of Second. Both are NaN if all pairs are censored. Ratio is also NaN if a mean is not above 0.
	Difference, Ratio float64

	// MedianDifference and Less cover all pairs. Less is the share of pairs in which the first cost less; equal costs
	// count half. It is the sign test's statistic: 1/2 means that neither strategy is better. If censoring leaves a
	// pair undecided, the range includes all possible values.
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

// decided returns the costs of the pairs in which both are known.
func decided(pairs []Pair) (first, second []Cost) {
	for _, p := range pairs {
		if !p.First.Censored && !p.Second.Censored {
			first, second = append(first, p.First), append(second, p.Second)
		}
	}
	return first, second
}

// difference returns the mean of First minus Second over the known pairs.
func difference(pairs []Pair) float64 {
	first, second := decided(pairs)
	return mean(first) - mean(second)
}

// ratio returns the mean of First divided by the mean of Second over the known pairs.
func ratio(pairs []Pair) float64 {
	first, second := decided(pairs)
	a, b := mean(first), mean(second)
	if !(a > 0 && b > 0) { // a ratio with a negative cost has no meaning
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
