package itercost

import (
	"fmt"
	"math"

	"gonum.org/v1/gonum/stat"
)

// Rate estimates how fast a run contracts: c is the factor by which each clock multiplies the distance to the optimum.
type Rate struct {
	// C is the typical rate of the series: the least-squares slope of the logarithm of the distance over clocks. Low
	// and High are its interval. Residuals are drawn in blocks, because residuals of successive clocks are correlated
	// (Künsch 1989). The interval is somewhat narrow: with 100 clocks a 95% interval contains c 92 times of 100, and 84
	// times if half of a clock's noise carries over to the next.
	C, Low, High float64

	// Worst is the largest factor between two neighbors of the series (across a gap of n clocks, the n-th root): no
	// smaller c satisfies the hypothesis of [Bound]. A larger c may be needed, because a perturbation may move a run to
	// where it contracts more slowly than its twin ever did. Therefore also compute it for the disturbed run after its
	// last perturbation, and use the larger one. A Bound computed with C is not a bound, only an estimate for a typical
	// run.
	Worst float64
}

// Rate estimates c from a run's distances. They must be above 0, at three clocks or more, without a perturbation among
// them. Pass only the part of the series with a constant rate, in particular without the noise floor at its end. A loss
// is not a distance: near a minimum, its excess over the minimum contracts by c².
func (b Bootstrap) Rate(distances Series) (Rate, error) {
	b, err := b.withDefaults()
	if err == nil {
		err = distances.check()
	}
	if err != nil {
		return Rate{}, err
	}
	if len(distances) < 3 {
		return Rate{}, fmt.Errorf("%w: %d distances are too few to compute a rate; at least 3 are needed",
			ErrSeries, len(distances))
	}
	clocks, logs := make([]float64, len(distances)), make([]float64, len(distances))
	steepest := math.Inf(-1)
	for i, p := range distances {
		if p.Value <= 0 {
			return Rate{}, fmt.Errorf("%w: the distance at clock %d is %v; end the series before it", ErrSeries,
				p.Clock, p.Value)
		}
		clocks[i], logs[i] = float64(p.Clock), math.Log(p.Value)
		if i > 0 {
			steepest = max(steepest, (logs[i]-logs[i-1])/(clocks[i]-clocks[i-1]))
		}
	}
	level, slope := stat.LinearRegression(clocks, logs, nil, false)
	if slope >= 0 {
		return Rate{}, fmt.Errorf("%w: the distances do not decrease; their rate is %.4g", ErrRate, math.Exp(slope))
	}
	residuals := logs
	for i, clock := range clocks {
		residuals[i] -= level + slope*clock
	}
	low, high := b.spread(slopes(clocks, residuals))
	return Rate{math.Exp(slope), math.Exp(slope + low), math.Exp(slope + high), math.Exp(steepest)}, nil
}

// slopes draws series of residuals, in blocks of the cube root of their number. It returns the slope of each, which is
// the estimation error for a line with such residuals.
func slopes(clocks, residuals []float64) func(*splitMix64) Range {
	n := len(residuals)
	block := int(math.Ceil(math.Cbrt(float64(n))))
	drawn := make([]float64, n)
	return func(l *splitMix64) Range {
		for i := 0; i < n; i += block {
			copy(drawn[i:], residuals[l.intN(n-block+1):][:block])
		}
		_, slope := stat.LinearRegression(clocks, drawn, nil, false)
		return Exactly(slope)
	}
}
