package itercost

import (
	"errors"
	"fmt"
	"math"
)

// ErrSeries is returned for values that are no series: none, not finite, or at
// clocks that do not rise.
var ErrSeries = errors.New("itercost: not a series")

// Point is what was measured of a run after a number of iterations.
type Point struct {
	Clock int // iterations that were done before, at least 0
	Value float64
}

// Series is how a run went: its loss or its distance to the optimum, at rising
// clocks. A run that is evaluated now and then has gaps.
type Series []Point

// EachClock makes a series of one value for each clock, from 0.
func EachClock(values []float64) Series {
	s := make(Series, len(values))
	for i, v := range values {
		s[i] = Point{i, v}
	}
	return s
}

// check says what is wrong with a series, if anything.
func (s Series) check() error {
	if len(s) == 0 {
		return fmt.Errorf("%w: it is empty", ErrSeries)
	}
	last := -1
	for _, p := range s {
		switch {
		case p.Clock <= last:
			return fmt.Errorf("%w: clock %d comes after clock %d", ErrSeries, p.Clock, last)
		case !finite(p.Value):
			return fmt.Errorf("%w: its value at clock %d is %v", ErrSeries, p.Clock, p.Value)
		}
		last = p.Clock
	}
	return nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }
