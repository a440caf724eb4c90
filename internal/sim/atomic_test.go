package sim_test

import (
	"math/rand/v2"
	"testing"

	"github.com/perdure/perdure"
)

// ticking gives a scenario atomic clocks.
func ticking(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := as("asp", "ssp:2", "essp:1", "ssp:0")(draw)(seed)
		s.job.AtomicClocks, s.job.StaleScale = true, ""
		return s, rng
	}
}

// drawStrategy draws a scenario of any recovery strategy.
func drawStrategy(seed uint64) (scenario, *rand.Rand) {
	all := []drawing{
		draw, drawChain, drawSaved, drawResend, drawPartial, drawStateless, drawNone, drawScar, drawEager, drawEvery,
	}
	return all[seed%uint64(len(all))](seed)
}

// TestAtomic checks atomic clocks: a slot's clock is on all shards or on none, and its next process starts with the
// state of the last one.
func TestAtomic(t *testing.T) { runSeeds(t, ticking(drawStrategy)) }

// TestAtomicRosters is TestAtomic with workers that join and leave.
func TestAtomicRosters(t *testing.T) { runSeeds(t, ticking(drawScaled(drawStrategy))) }

// TestAtomicOutages is TestAtomic with workers that continue while a shard is unavailable.
func TestAtomicOutages(t *testing.T) {
	relaxed := 0
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		all := []drawing{drawChain, drawSaved, drawResend, drawPartial, drawStateless, drawEager, drawEvery}
		s, rng := drawOutages(all[seed%uint64(len(all))])(seed)
		if s.job.Consistency.Kind == perdure.VAP {
			s.job.Consistency = perdure.Consistency{Kind: perdure.ASP}
		}
		s.job.AtomicClocks, s.relaxed = true, &relaxed
		return s, rng
	})
	if relaxed == 0 && manySeeds() {
		t.Error("no read was relaxed")
	}
}
