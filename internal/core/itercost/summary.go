package itercost

import (
	"errors"
	"fmt"
)

// ErrSample is returned for costs of which nothing can be said: none, or all of
// them censored where their mean is asked for.
var ErrSample = errors.New("itercost: not a sample")

// Summary is what several runs cost.
type Summary struct {
	Runs, Censored int

	// Mean is that of the runs that are not censored; NaN: all are. It is below the
	// mean of all runs where the censored are those that cost most, so it is worth
	// no more than Share is small.
	Mean float64

	// Median is that of all runs. A censored cost may be anything from what it is at
	// least upwards: where that leaves the median open, both ends of what it can be
	// are given. It is known where fewer than half of the runs are censored, and none of
	// them below the costs in the middle. (The median of Kaplan and Meier is a number more
	// often, since it supposes that a run's end says nothing of its cost.)
	Median Range
}

// Summarize puts the costs of runs together.
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

// Share is how large a part of the runs is censored.
func (s Summary) Share() float64 { return float64(s.Censored) / float64(s.Runs) }

// mean is that of the costs that are not censored; NaN: all are.
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
