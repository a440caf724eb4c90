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
	Seed uint64
	// Baselines identifies, for each cost or pair, the undisturbed run used to compute it. Costs with the same twin are
	// not independent and are drawn together. nil: each has its own twin.
	Baselines []int
}

// An interval of 95% has beyond of its draws below it, and as many above it.
const (
	draws  = 2000
	beyond = draws / 40
)

// Interval is an estimate of a statistic with its confidence interval.
type Interval struct {
	Estimate float64 // computed from the whole sample
	// Low and High bound the true value. A bound is infinite if the statistic is unknown in too many draws.
	Low, High float64
}

// Mean returns the interval of [Summary].Mean.
func (b Bootstrap) Mean(costs []Cost) (Interval, error) { return interval(b, costs, mean) }

// Difference returns the interval of the mean of First minus Second, over the pairs without a censored cost.
func (b Bootstrap) Difference(pairs []Pair) (Interval, error) { return interval(b, pairs, difference) }

// interval returns the interval of a statistic of a sample. The statistic is NaN if it is unknown.
func interval[T any](b Bootstrap, sample []T, of func([]T) float64) (Interval, error) {
	if len(sample) == 0 {
		return Interval{}, fmt.Errorf("%w: it is empty", ErrSample)
	}
	units, err := b.groups(len(sample))
	if err != nil {
		return Interval{}, err
	}
	estimate := of(sample)
	if math.IsNaN(estimate) {
		return Interval{}, fmt.Errorf("%w: none of its %d members has a known value", ErrSample, len(sample))
	}
	l := splitMix64(b.Seed)
	lows, highs := make([]float64, draws), make([]float64, draws)
	var drawn []T
	for i := range draws {
		drawn = drawn[:0]
		for range units {
			for _, j := range units[l.intN(len(units))] {
				drawn = append(drawn, sample[j])
			}
		}
		lows[i] = of(drawn)
		if highs[i] = lows[i]; math.IsNaN(lows[i]) { // it may be any number
			lows[i], highs[i] = math.Inf(-1), math.Inf(1)
		}
	}
	slices.Sort(lows)
	slices.Sort(highs)
	return Interval{estimate, lows[beyond], highs[draws-1-beyond]}, nil
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
