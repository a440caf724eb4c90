package itercost

import (
	"errors"
	"fmt"
	"math"
	"slices"
)

// ErrSample is returned for costs without a valid statistic: an empty sample, or a mean of censored costs only.
var ErrSample = errors.New("itercost: not a sample")

// Range is a number between Low and High. An unknown end is infinite.
type Range struct{ Low, High float64 }

// Summary summarizes the costs of several runs.
type Summary struct {
	Runs, Censored int
	// Mean is the mean cost of the uncensored runs, or NaN if all are censored. It underestimates the mean of all runs
	// if the most expensive runs are censored, so it is only reliable if few are.
	Mean float64
	// Median is the range of the median cost of all runs. A censored cost may have any value from its lower bound
	// upward. If the median depends on it, the range has both possible ends. The median is known if fewer than half of
	// the runs are censored, none of them below the costs in the middle. (The Kaplan-Meier median is a number more
	// often, because it assumes that a run's end is independent of its cost.)
	Median Range
}

// Summarize summarizes the costs of runs.
func Summarize(costs []Cost) (Summary, error) {
	if len(costs) == 0 {
		return Summary{}, fmt.Errorf("%w: there are no costs", ErrSample)
	}
	s := Summary{Runs: len(costs), Mean: mean(costs), Median: median(costs)}
	for _, c := range costs {
		if c.Censored {
			s.Censored++
		}
	}
	return s, nil
}

// mean returns the mean of the uncensored costs, or NaN if all are censored.
func mean(costs []Cost) float64 {
	sum, known := 0.0, 0.0
	for _, c := range costs {
		if !c.Censored {
			sum += float64(c.Clocks)
			known++
		}
	}
	return sum / known // 0/0 is NaN
}

// median returns the range of the median of at least one cost. A median does not fall when a cost rises, so its ends
// are the medians of the lowest and the highest possible costs, and the range is as narrow as possible.
func median(costs []Cost) Range {
	lows, highs := make([]float64, len(costs)), make([]float64, len(costs))
	for i, c := range costs {
		lows[i], highs[i] = float64(c.Clocks), float64(c.Clocks)
		if c.Censored {
			highs[i] = math.Inf(1)
		}
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

// Pair holds the costs of one failure under each of two strategies. Both costs refer to the same undisturbed run, which
// cancels in their difference. Strategies are therefore compared within pairs, not by their means.
type Pair struct{ First, Second Cost }

// difference returns the mean of First minus Second over the pairs in which both are known, or NaN if there are none.
func difference(pairs []Pair) float64 {
	var first, second []Cost
	for _, p := range pairs {
		if !p.First.Censored && !p.Second.Censored {
			first, second = append(first, p.First), append(second, p.Second)
		}
	}
	return mean(first) - mean(second)
}
