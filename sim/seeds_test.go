package sim_test

import (
	"errors"
	"flag"
	"math/rand/v2"
	"testing"

	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/sim"
)

var (
	seeds     = flag.Uint64("sim.seeds", 100, "how many seeds to run")
	firstSeed = flag.Uint64("sim.first", 1, "the first of them")
	failures  = flag.Int("sim.failures", 1, "after how many failures to stop")
	oneSeed   = flag.Uint64("sim.seed", 0, "run this seed only, with a log")
)

// Whatever is killed, every read keeps its promises and every update is in the
// model exactly once.
func TestSeeds(t *testing.T) { runSeeds(t, draw) }

// The same of replicated shards, as long as each keeps a replica; and all replicas are
// the same, byte by byte.
func TestChains(t *testing.T) { runSeeds(t, drawChain) }

// Where updates may be lost, none is there twice, those that are not there are counted,
// and the replicas are the same.
func TestLossy(t *testing.T) { runSeeds(t, drawLossy) }

func runSeeds(t *testing.T, draw func(seed uint64) (scenario, *rand.Rand)) {
	t.Helper()
	first, last := *firstSeed, *firstSeed+*seeds-1
	if *oneSeed != 0 {
		first, last = *oneSeed, *oneSeed
	}
	failed := 0
	for seed := first; seed <= last && failed < *failures; seed++ {
		s, rng := draw(seed)
		if err := run(t, seed, s, rng, nil); err != nil {
			t.Errorf("seed %d (%s): %v; replay with -run %s -sim.seed=%d", seed, s, err, t.Name(), seed)
			failed++
		}
		if t.Failed() && failed == 0 {
			return // something that no scenario ends with
		}
	}
}

// With a safety mechanism switched off, the checker must notice: otherwise it
// would not be worth much.
func TestNegativeControls(t *testing.T) {
	for name, weaken := range map[string]func(*sim.Options){
		"exactly once": func(o *sim.Options) { o.Weakened = consistency.Weakened{ExactlyOnce: true} },
		"staging":      func(o *sim.Options) { o.Weakened = consistency.Weakened{Staging: true} },
		"generations":  func(o *sim.Options) { o.WeakenedGenerations = true },
		"pushes":       func(o *sim.Options) { o.Weakened = consistency.Weakened{Pushes: true} },
		"bound":        func(o *sim.Options) { o.Weakened = consistency.Weakened{Bound: true} },
	} {
		t.Run(name, func(t *testing.T) {
			for seed := uint64(1); seed <= 300; seed++ {
				s, rng := draw(seed)
				// The hardest case for fencing: a cut at every clock, and updates that
				// come late, from before a roll-back.
				s.job.Recovery.Every, s.cuts, s.kills = 1, 4, 3
				err := run(t, seed, s, rng, weaken)
				var v *sim.Violation
				if errors.As(err, &v) {
					t.Logf("seed %d: %v", seed, err)
					return
				}
			}
			t.Error("300 seeds without it, and nothing was noticed")
		})
	}
}
