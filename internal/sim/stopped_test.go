package sim_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure/internal/core/weaken"
	"github.com/perdure/perdure/internal/sim"
)

// A run under scar that is ended in order leaves all rows as of one clock, whoever dies meanwhile, and what
// they lack is counted. Where nobody dies nothing is lost.
func TestScarStops(t *testing.T) { runSeeds(t, drawStop) }

// drawStop draws a run whose rows are saved by themselves, and that is ended early.
func drawStop(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawScar(seed)
	s.ends = true
	if s.pace = max(s.pace, 5*time.Millisecond); seed%2 == 0 { // nobody dies or hands over
		s.kills, s.cuts, s.strikes, s.pairs, s.routs, s.freezes, s.parts, s.deaths = 0, 0, 0, 0, 0, 0, 0, 0
		s.drains, s.joins, s.net.Breaks, s.lossless = 0, 0, 0, true
	}
	return s, rng
}

// planEnd plans that the run is ended.
func (f *faults) planEnd(rng *rand.Rand) {
	if f.stop.Cluster = f.c; f.s.ends {
		f.at(span(rng, clocks*f.s.pace), f.stop.End)
	}
}

// judge judges what is left of a job, or of a run that was ended before.
func (f *faults) judge() error {
	if !f.stop.Done() {
		return final(f.c, f.h, f.s)
	}
	facts, err := f.c.Facts()
	if err != nil {
		return err
	}
	return f.h.Stopped(&facts, f.c.Disk(), f.s.lossless)
}

// Where the last save is taken after the clock that was named that is noticed.
func TestScarStopsWeakened(t *testing.T) {
	for seed := uint64(1); seed <= mostSeeds; seed++ {
		s, rng := drawStop(seed)
		var v *sim.Violation
		if err := run(t, seed, s, rng, weak(weaken.Set{Cuts: true})); errors.As(err, &v) {
			s, rng = drawStop(seed)
			if calm := run(t, seed, s, rng, nil); calm != nil {
				t.Errorf("seed %d fails with nothing switched off: %v", seed, calm)
			}
			t.Logf("seed %d: %v", seed, v)
			return
		}
	}
	t.Errorf("%d seeds, and nothing was noticed", mostSeeds)
}
