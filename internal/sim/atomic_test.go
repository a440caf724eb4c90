package sim_test

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/sim"
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

// drawSlotCuts draws a scenario of any strategy with checkpoints, with frequent cuts by slot.
func drawSlotCuts(seed uint64) (scenario, *rand.Rand) {
	all := []drawing{draw, drawSaved, drawResend, drawPartial, behind(drawSaved)}
	return slotCuts(all[seed%uint64(len(all))])(seed)
}

// slotCuts gives the scenarios of a strategy with checkpoints atomic clocks and frequent cuts.
func slotCuts(draw drawing) drawing {
	return func(seed uint64) (scenario, *rand.Rand) {
		s, rng := ticking(draw)(seed)
		more := rand.New(rand.NewPCG(seed, 41))
		if !s.job.Recovery.Auto {
			s.job.Recovery.Every = perdure.Clock(1 + more.IntN(4))
		}
		s.job.Slots = max(2, s.job.Slots)
		if !s.job.NoReplace {
			s.kills += more.IntN(4)
		}
		s.pace = max(s.pace, time.Duration(more.IntN(20))*time.Millisecond)
		return s, rng
	}
}

// TestSlotCuts checks cuts by slot: no slot waits for another, and each slot continues with its own clock after a
// rollback.
func TestSlotCuts(t *testing.T) {
	var counts sim.Counts
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := drawSlotCuts(seed)
		s.counts = &counts
		return s, rng
	})
	t.Logf("%+v", counts)
	if (counts.SlotCuts == 0 || counts.SlotRestarts == 0) && manySeeds() {
		t.Errorf("no slot has restarted at a clock of its own: %+v", counts)
	}
}

// TestSlotCutsGoals is TestSlotCuts for jobs that end early because their programs reached their goal.
func TestSlotCutsGoals(t *testing.T) {
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		s, rng := drawSlotCuts(seed)
		more := rand.New(rand.NewPCG(seed, 23))
		s.goal = 1 + perdure.Clock(more.IntN(clocks-3))
		if seed%2 == 0 {
			s.misses = 1 + perdure.Clock(more.IntN(3))
		}
		return s, rng
	})
}

// TestSkips checks updates of several clocks under asp with atomic clocks: slots that are behind skip the clocks before
// an early end, and those of jobs without a goal skip some at random.
func TestSkips(t *testing.T) {
	var counts sim.Counts
	runSeeds(t, func(seed uint64) (scenario, *rand.Rand) {
		all := []drawing{
			draw, drawSaved, drawResend, drawPartial, drawStateless, drawChain, drawNone, drawEager, drawScar,
		}
		s, rng := as("asp")(slotCuts(all[seed%uint64(len(all))]))(seed)
		more := rand.New(rand.NewPCG(seed, 47))
		if s.job.StaleScale = ""; more.IntN(2) == 0 {
			s.goal, s.misses = 1+perdure.Clock(more.IntN(clocks-3)), perdure.Clock(more.IntN(4))
		}
		s.skips, s.counts = true, &counts
		return s, rng
	})
	if counts.Merged == 0 && manySeeds() {
		t.Error("no update covered several clocks")
	}
}

// TestAtomicResumes is TestStatelessResumes with atomic clocks: each slot continues with its own clock.
func TestAtomicResumes(t *testing.T) { runResumes(t, drawResumes(ticking(drawStateless))) }

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
