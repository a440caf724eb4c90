package itercost

import (
	"errors"
	"fmt"
)

// ErrSample is returned for costs without a valid statistic: an empty sample, or a mean of censored costs only.
var ErrSample = errors.New("itercost: not a sample")

// Summary summarizes the costs of several runs.
type Summary struct {
	Runs, Censored int

	// Mean is the mean cost of the uncensored runs, or NaN if all are censored. It underestimates the mean of all runs
	// if the most expensive runs are censored, so it is only reliable if Share is small.
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
	s := Summary{Runs: len(costs), Mean: mean(costs), Median: medianCost(costs)}
	for _, c := range costs {
		if c.Censored {
			s.Censored++
		}
	}
	return s, nil
}

// Share returns the fraction of censored runs.
func (s Summary) Share() float64 { return float64(s.Censored) / float64(s.Runs) }

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

func medianCost(costs []Cost) Range {
	ranges := make([]Range, len(costs))
	for i, c := range costs {
		ranges[i] = c.Range()
	}
	return median(ranges)
}
