package sim_test

import (
	"math/rand/v2"
	"testing"
	"time"
)

// TestStates keeps slot states in the store. The coordinator deletes old ones while servers, workers and the
// coordinator die. Every replacement must find the state that it needs.
func TestStates(t *testing.T) { runSeeds(t, drawStates) }

func drawStates(seed uint64) (scenario, *rand.Rand) {
	return stored(strategies[seed%uint64(len(strategies))].draw)(seed)
}

// stored keeps slot states in the store and slows the job down, so that after each clock the coordinator learns which
// states may be deleted. Faults happen throughout.
func stored(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := draw(seed)
		more := rand.New(rand.NewPCG(seed, 17))
		s.stored, s.pace = true, time.Duration(30+more.IntN(120))*time.Millisecond
		if s.window = clocks * s.pace; !s.job.NoReplace {
			s.kills += 2 + more.IntN(4)
		}
		return s, rng
	}
}
