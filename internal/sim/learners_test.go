package sim_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/sim"
)

// learning puts a scenario under bsp and adds a table of weights that slots change while their clock ends.
func learning(draw drawing, fault sim.LearnerFault, roundings ...sim.Rounding) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := as("bsp")(draw)(seed)
		s.learners, s.rounding = &fault, roundings[seed/4%uint64(len(roundings))]
		return s, rng
	}
}

// exact does not round, and coarse rounds most.
var (
	exact  = sim.Rounding{}
	coarse = sim.Rounding{Up: perdure.Encoding2Bit, Down: perdure.EncodingInt8}
)

// drawLossless draws a scenario of a strategy that loses no updates.
func drawLossless(seed uint64) (scenario, *rand.Rand) {
	return []drawing{draw, drawChain, drawStateless, drawResend}[seed%4](seed)
}

// TestLearners checks that slots that continue with inner steps while an outer step is exchanged compute the same
// weights whichever processes die.
func TestLearners(t *testing.T) {
	runSeeds(t, learning(drawLossless, sim.NoLearnerFault, exact, coarse, sim.Rounding{Up: perdure.EncodingInt8},
		sim.Rounding{Up: perdure.EncodingBF16, Down: perdure.EncodingBF16}))
}

// TestLearnersWeakened checks that mistakes in the programs end as violations.
func TestLearnersWeakened(t *testing.T) {
	for name, of := range map[string]struct {
		fault    sim.LearnerFault
		rounding sim.Rounding
	}{
		"the base is not moved":      {sim.LearnerSendsTwice, exact},
		"a merge is a step early":    {sim.LearnerMergesEarly, exact},
		"the window is not repeated": {sim.LearnerOmitsWindow, exact},
		"an error is added twice":    {sim.LearnerCorrectsTwice, coarse},
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(mostSeeds) {
				s, rng := learning(drawLossless, of.fault, of.rounding)(seed)
				var v *sim.Violation
				if errors.As(run(t, seed, s, rng, nil), &v) {
					return
				}
			}
			t.Errorf("no violation in %d seeds", mostSeeds)
		})
	}
}
