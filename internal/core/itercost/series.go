package itercost

import (
	"errors"
	"fmt"
	"math"
)

// ErrSeries is returned for an invalid series: empty, with non-finite values, or with clocks that do not increase.
var ErrSeries = errors.New("itercost: not a series")

// Point is one measurement of a run after a number of iterations.
type Point struct {
	Clock int // number of finished iterations, at least 0
	Value float64
}

// Series is the loss of a run, or its distance to the optimum, at increasing clocks. A run that is evaluated only
// periodically has gaps.
type Series []Point

// EachClock returns a series with one value per clock, from 0.
func EachClock(values []float64) Series {
	s := make(Series, len(values))
	for i, v := range values {
		s[i] = Point{i, v}
	}
	return s
}

// check validates a series.
func (s Series) check() error {
	if len(s) == 0 {
		return fmt.Errorf("%w: it is empty", ErrSeries)
	}
	last := -1
	for _, p := range s {
		switch {
		case p.Clock <= last:
			return fmt.Errorf("%w: clocks must increase, but clock %d follows clock %d", ErrSeries, p.Clock, last)
		case !finite(p.Value):
			return fmt.Errorf("%w: its value at clock %d is not finite: %v", ErrSeries, p.Clock, p.Value)
		}
		last = p.Clock
	}
	return nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
