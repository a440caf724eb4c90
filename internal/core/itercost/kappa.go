package itercost

import (
	"errors"
	"fmt"
	"math"
)

// ErrSeries is returned for an invalid series: empty, or with values that are not finite.
var ErrSeries = errors.New("itercost: not a series")

// ErrNeverReached is returned if the undisturbed run does not reach ε. The cost of a failure is then undefined.
var ErrNeverReached = errors.New("itercost: the undisturbed run never reaches ε")

// Reach is when a run reached ε.
type Reach struct {
	Clock    int  // κ, or a lower bound of κ if Censored
	Censored bool // the run ended before it reached ε
}

// Kappa returns κ(s, ε): the first clock from which the series stays at or below ε. The series has one value per clock,
// from 0: the loss of a run, or its distance to the optimum. Staying at or below ε is part of the paper's definition: a
// failure may push a run above ε again, and the iterations until it returns count. Equality suffices because the error
// may be exactly ε at the clock given by the bound of κ.
//
// A run that is above ε at its end is censored: κ is above the last clock.
//
// Values must be finite. A diverged run never reaches ε: end its series before the first non-finite value. The run is
// censored if its last value is above ε; otherwise use Reach{clock, true}.
func Kappa(series []float64, epsilon float64) (Reach, error) {
	if err := checkSeries(series); err != nil {
		return Reach{}, err
	}
	if !finite(epsilon) {
		return Reach{}, fmt.Errorf("itercost: ε is %v; choose a finite number", epsilon)
	}
	clock := len(series)
	for clock > 0 && series[clock-1] <= epsilon {
		clock--
	}
	return Reach{clock, clock == len(series)}, nil
}

func checkSeries(series []float64) error {
	if len(series) == 0 {
		return fmt.Errorf("%w: it is empty", ErrSeries)
	}
	for clock, v := range series {
		if !finite(v) {
			return fmt.Errorf("%w: the value at clock %d is not finite: %v", ErrSeries, clock, v)
		}
	}
	return nil
}

func finite(v float64) bool { return !math.IsNaN(v) && !math.IsInf(v, 0) }

// Cost is the cost of a failure in clocks. It is negative if the perturbation happened to help.
type Cost struct {
	Clocks   int  // a lower bound if Censored
	Censored bool // the disturbed run ended before it reached ε
}

// Iota returns the iteration cost of a disturbed run: how many clocks later than its undisturbed twin it reached the
// same ε.
func Iota(disturbed, undisturbed Reach) (Cost, error) {
	if undisturbed.Censored {
		return Cost{}, fmt.Errorf("%w before clock %d; choose a larger ε or more clocks", ErrNeverReached,
			undisturbed.Clock)
	}
	return Cost{disturbed.Clock - undisturbed.Clock, disturbed.Censored}, nil
}
