package itercost

import (
	"fmt"
	"math"
	"math/bits"
	"slices"
)

// Bootstrap configures percentile bootstrap intervals (Efron 1979): samples are drawn from the sample with replacement,
// and an interval lies between two percentiles of the statistic. It is a function of the sample and of these settings,
// which may all be zero. Intervals of small samples are too narrow: with exponentially distributed costs, a 95%
// interval contains the mean about 87 times of 100 with 20 costs, and 92 times with 100 costs.
type Bootstrap struct {
	Seed  uint64
	Draws int     // number of draws; 0: 2000
	Level float64 // nominal coverage of an interval, in (0, 1); 0: 0.95

	// Baselines identifies, for each cost or pair, the undisturbed run used to compute it. Costs with the same twin are
	// not independent and are drawn together. nil: each has its own twin.
	Baselines []int
}

// Interval is an estimate of a statistic with its confidence interval.
type Interval struct {
	Estimate Range // computed from the whole sample
	// Low and High bound the true value at the Bootstrap's level, whatever its Range. A bound is infinite if too many
	// draws leave it unknown.
	Low, High float64
}

// String returns the estimate with its interval.
func (i Interval) String() string { return fmt.Sprintf("%v [%.4g, %.4g]", i.Estimate, i.Low, i.High) }

// Mean returns the interval of [Summary].Mean.
func (b Bootstrap) Mean(costs []Cost) (Interval, error) {
	return interval(b, costs, func(draw []Cost) Range { return orUnknown(mean(draw)) })
}

// Median returns the interval of [Summary].Median.
func (b Bootstrap) Median(costs []Cost) (Interval, error) { return interval(b, costs, medianCost) }

// Difference returns the interval of [Comparison].Difference.
func (b Bootstrap) Difference(pairs []Pair) (Interval, error) {
	return interval(b, pairs, func(draw []Pair) Range { return orUnknown(difference(draw)) })
}

// MedianDifference returns the interval of [Comparison].MedianDifference.
func (b Bootstrap) MedianDifference(pairs []Pair) (Interval, error) {
	return interval(b, pairs, medianDifference)
}

// Ratio returns the interval of [Comparison].Ratio.
func (b Bootstrap) Ratio(pairs []Pair) (Interval, error) {
	return interval(b, pairs, func(draw []Pair) Range { return orUnknown(ratio(draw)) })
}

// Less returns the interval of [Comparison].Less.
func (b Bootstrap) Less(pairs []Pair) (Interval, error) { return interval(b, pairs, less) }

// interval returns the interval of a statistic of a sample.
func interval[T any](b Bootstrap, sample []T, of func([]T) Range) (Interval, error) {
	if len(sample) == 0 {
		return Interval{}, fmt.Errorf("%w: it is empty", ErrSample)
	}
	b, err := b.withDefaults()
	if err != nil {
		return Interval{}, err
	}
	units, err := b.groups(len(sample))
	if err != nil {
		return Interval{}, err
	}
	estimate := of(sample)
	if estimate == unknown {
		return Interval{}, fmt.Errorf("%w: none of its %d members has a known value", ErrSample, len(sample))
	}
	var drawn []T
	low, high := b.spread(func(l *splitMix64) Range {
		drawn = drawn[:0]
		for range units {
			for _, i := range units[l.intN(len(units))] {
				drawn = append(drawn, sample[i])
			}
		}
		return of(drawn)
	})
	return Interval{estimate, low, high}, nil
}

// withDefaults replaces zero settings by defaults.
func (b Bootstrap) withDefaults() (Bootstrap, error) {
	if b.Draws == 0 {
		b.Draws = 2000
	}
	if b.Level == 0 {
		b.Level = 0.95
	}
	switch {
	case b.Draws < 1:
		return b, fmt.Errorf("itercost: invalid number of draws %d; choose at least 1", b.Draws)
	case !(b.Level > 0 && b.Level < 1):
		return b, fmt.Errorf("itercost: level %v is outside (0, 1)", b.Level)
	}
	return b, nil
}

// groups groups the members of a sample of size n that are drawn together, in the order of each group's first member.
func (b Bootstrap) groups(n int) (units [][]int, err error) {
	if b.Baselines != nil && len(b.Baselines) != n {
		return nil, fmt.Errorf("%w: it has %[3]d members, but %[2]d twins", ErrSample, len(b.Baselines), n)
	}
	of := map[int]int{} // index in units by twin
	for i := range n {
		twin := i
		if b.Baselines != nil {
			twin = b.Baselines[i]
		}
		at, known := of[twin]
		if !known {
			at = len(units)
			of[twin], units = at, append(units, nil)
		}
		units[at] = append(units[at], i)
	}
	return units, nil
}

// spread returns the percentiles of the draws that enclose a share of level. If only a range of a draw is known, its
// low end counts for the lower percentile and its high end for the upper one.
func (b Bootstrap) spread(draw func(*splitMix64) Range) (low, high float64) {
	l := splitMix64(b.Seed)
	lows, highs := make([]float64, b.Draws), make([]float64, b.Draws)
	for i := range b.Draws {
		r := draw(&l)
		lows[i], highs[i] = r.Low, r.High
	}
	slices.Sort(lows)
	slices.Sort(highs)
	beyond := int(math.Floor((1 - b.Level) / 2 * float64(b.Draws)))
	return lows[beyond], highs[b.Draws-1-beyond]
}

// splitMix64 is SplitMix64 (Steele, Lea, Flood 2014). It is implemented here so that a seed gives the same draws with
// every Go version.
type splitMix64 uint64

// intN draws a number from 0 to n−1, n > 0. It takes the high half of a product; the bias is below n/2⁶⁴.
func (l *splitMix64) intN(n int) int {
	*l += 0x9e3779b97f4a7c15
	z := uint64(*l)
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	high, _ := bits.Mul64(z^z>>31, uint64(n))
	return int(high)
}
