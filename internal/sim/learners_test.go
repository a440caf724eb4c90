package sim_test

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/perdure/perdure/internal/sim"
)

// learning puts a scenario under bsp and adds a table of weights that slots change while their clock ends.
func learning(draw drawing, fault sim.LearnerFault) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := as("bsp")(draw)(seed)
		s.learners = &fault
		return s, rng
	}
}

// drawLossless draws a scenario of a strategy that loses no updates.
func drawLossless(seed uint64) (scenario, *rand.Rand) {
	return []drawing{draw, drawChain, drawStateless, drawResend}[seed%4](seed)
}

// TestLearners checks that slots that continue with inner steps while an outer step is exchanged compute the same
// weights whichever processes die.
func TestLearners(t *testing.T) { runSeeds(t, learning(drawLossless, sim.NoLearnerFault)) }

// TestLearnersWeakened checks that mistakes in the programs end as violations.
func TestLearnersWeakened(t *testing.T) {
	for name, fault := range map[string]sim.LearnerFault{
		"the base is not moved":      sim.LearnerSendsTwice,
		"a merge is a step early":    sim.LearnerMergesEarly,
		"the window is not repeated": sim.LearnerOmitsWindow,
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(mostSeeds) {
				s, rng := learning(drawLossless, fault)(seed)
				var v *sim.Violation
				if errors.As(run(t, seed, s, rng, nil), &v) {
					return
				}
			}
			t.Errorf("no violation in %d seeds", mostSeeds)
		})
	}
}
