package itercost

import (
	"errors"
	"fmt"
)

// ErrNeverReached is returned if the undisturbed run does not reach ε. The cost of a failure is then undefined.
var ErrNeverReached = errors.New("itercost: the undisturbed run never reaches ε")

// Reach is when a run reached ε.
type Reach struct {
	Clock    int  // κ, or a lower bound of κ if Censored
	Censored bool // the run ended before it reached ε
}

// Kappa returns κ(s, ε): the first clock from which the series stays at or below ε. Staying there is part of the
// paper's definition: a failure may push a run above ε again, and the iterations until it returns count. Equality
// suffices because the error may be exactly ε at the clock given by the bound of κ.
//
// A run that is above ε at its end is censored: κ is above the last recorded clock. For a series with gaps, κ is the
// first recorded clock; the true one is above the recorded clock before it.
//
// Values must be finite. A diverged run never reaches ε: end its series before the first non-finite value. The run is
// censored if its last value is above ε; otherwise use Reach{clock, true}.
func Kappa(s Series, epsilon float64) (Reach, error) {
	if err := s.check(); err != nil {
		return Reach{}, err
	}
	if !finite(epsilon) {
		return Reach{}, fmt.Errorf("itercost: ε is %v; choose a finite number", epsilon)
	}
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i].Value <= epsilon:
		case i == len(s)-1:
			return Reach{s[i].Clock + 1, true}, nil
		default:
			return Reach{s[i+1].Clock, false}, nil
		}
	}
	return Reach{s[0].Clock, false}, nil
}
