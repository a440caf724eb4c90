package sim_test

import (
	"math/rand/v2"
	"testing"
	"time"
)

// What slots save lies in the store, and the coordinator deletes it while servers, workers and the coordinator
// die: whoever goes on finds what it needs.
func TestStates(t *testing.T) { runSeeds(t, drawStates) }

func drawStates(seed uint64) (scenario, *rand.Rand) {
	return stored(strategies[seed%uint64(len(strategies))].draw)(seed)
}

// stored has what slots save lie in the store, and the job go so slowly that the coordinator hears after each
// clock what may be deleted. Faults come all the while.
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
