package itercost

import (
	"fmt"
	"math"
)

// Cost is the cost of a failure in clocks. It is negative if the perturbation happened to help.
type Cost struct {
	Clocks   int  // a lower bound if Censored
	Censored bool // the disturbed run ended before it reached ε
}

// Iota returns the iteration cost of a disturbed run: how many clocks later than
// its undisturbed twin it reached the same ε.
func Iota(disturbed, undisturbed Reach) (Cost, error) {
	if undisturbed.Censored {
		return Cost{}, fmt.Errorf("%w before clock %d; choose a larger ε, or train for more clocks", ErrNeverReached,
			undisturbed.Clock)
	}
	return Cost{disturbed.Clock - undisturbed.Clock, disturbed.Censored}, nil
}

// Range returns the possible values of the cost.
func (c Cost) Range() Range {
	if c.Censored {
		return Range{float64(c.Clocks), math.Inf(1)}
	}
	return Exactly(float64(c.Clocks))
}

// String returns a number, or ≥ and a number.
func (c Cost) String() string { return c.Range().String() }
