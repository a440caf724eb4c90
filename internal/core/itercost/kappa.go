package itercost

import (
	"errors"
	"fmt"
)

// ErrNeverReached is returned where an undisturbed run does not reach ε: nothing
// can be said of a failure's cost then.
var ErrNeverReached = errors.New("itercost: the undisturbed run never reaches ε")

// Reach is when a run reached ε.
type Reach struct {
	Clock    int  // κ; of a censored run, what κ is at least
	Censored bool // the run ended before
}

// Kappa returns κ(s, ε): the first clock at which the series is at or below ε and
// from which on it stays there. That it stays is the paper's definition: a failure
// may throw a run out again, and the iterations until it is back are what is to be
// counted. That at ε is enough is for the bound of κ, which is a clock at which the
// error may be exactly ε.
//
// A run that is above ε at its end is censored: κ is above the last clock that is
// recorded. Of a series with gaps κ is the first recorded clock; the true one is
// above the recorded one before it.
//
// Values must be finite. A run that diverged reaches no ε: end its series before
// the first value that is not finite, and it is censored, if it is above ε there; if
// not, Reach{clock, true} says the same.
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
