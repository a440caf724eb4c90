package sim_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
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
	if s.pace = max(s.pace, 5*time.Millisecond); seed%2 == 0 {
		s.calm()
		s.lossless = true
	}
	return s, rng
}

// calm has nobody die or hand over.
func (s *scenario) calm() {
	s.kills, s.cuts, s.strikes, s.pairs, s.routs, s.freezes, s.parts, s.deaths = 0, 0, 0, 0, 0, 0, 0, 0
	s.drains, s.joins, s.net.Breaks, s.aways = 0, 0, 0, 0
}

// planEnd plans that the run is ended.
func (f *faults) planEnd(rng *rand.Rand) {
	f.stop = &sim.Stop{Cluster: f.c}
	switch window := clocks * max(f.s.pace, 4*time.Millisecond); {
	case f.s.resumes.times > 0:
		what := f.stop.Lose
		if f.s.ends {
			what = f.stop.End
		}
		f.after(1+perdure.Clock(rng.IntN(clocks-2)), span(rng, 2*window/clocks), what)
	case f.s.ends:
		f.at(span(rng, window), f.stop.End)
	}
}

// after does something a while after all slots have done n clocks.
func (f *faults) after(n perdure.Clock, pause time.Duration, what func()) {
	f.at(time.Millisecond, func() {
		if f.h.Least() < n {
			f.after(n, pause, what)
		} else {
			f.at(pause, what)
		}
	})
}

// judge judges what is left of a job, or of a run that was ended before; and then of the run that goes on from it.
func (f *faults) judge() error {
	if !f.stop.Done() && !f.stop.Lost() {
		return final(f.c, f.h, f.s)
	}
	if f.stop.Done() && recovery.RoundsOf(f.s.job.Recovery).Any() {
		facts, err := f.c.Facts()
		if err == nil {
			err = f.h.Stopped(&facts, f.c.Disk(), f.s.lossless)
		}
		if err != nil {
			return err
		}
	}
	return f.resume()
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
