package itercost

import (
	"fmt"
	"math"
)

// Cost is what a failure cost a run, in clocks. It is negative where the
// perturbation happened to help.
type Cost struct {
	Clocks   int  // of a censored run, what the cost is at least
	Censored bool // the disturbed run ended before it reached ε
}

// Iota returns the iteration cost of a disturbed run: how many clocks later than
// its undisturbed twin it reached the same ε.
func Iota(disturbed, undisturbed Reach) (Cost, error) {
	if undisturbed.Censored {
		return Cost{}, fmt.Errorf("%w before clock %d; take a larger ε, or let it run on", ErrNeverReached,
			undisturbed.Clock)
	}
	return Cost{disturbed.Clock - undisturbed.Clock, disturbed.Censored}, nil
}

// Range is what is known of the cost.
func (c Cost) Range() Range {
	if c.Censored {
		return Range{float64(c.Clocks), math.Inf(1)}
	}
	return Exactly(float64(c.Clocks))
}

// String is a number, or ≥ and a number.
func (c Cost) String() string { return c.Range().String() }
