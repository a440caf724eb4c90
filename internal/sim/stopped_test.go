package sim_test

import (
	"errors"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/sim"
)

// TestScarStops checks that a gracefully ended run under scar leaves all rows at one clock, whichever processes die,
// and that its missing updates are counted. Without deaths nothing is lost.
func TestScarStops(t *testing.T) { runSeeds(t, drawStop) }

// drawStop draws a run that saves each row separately and ends early.
func drawStop(seed uint64) (scenario, *rand.Rand) {
	s, rng := drawScar(seed)
	s.ends = true
	if s.pace = max(s.pace, 5*time.Millisecond); seed%2 == 0 {
		s.calm()
		s.lossless = true
	}
	return s, rng
}

// calm removes all deaths and handovers.
func (s *scenario) calm() {
	s.kills, s.cuts, s.strikes, s.pairs, s.routs, s.freezes, s.parts, s.deaths = 0, 0, 0, 0, 0, 0, 0, 0
	s.drains, s.joins, s.net.Breaks, s.aways = 0, 0, 0, 0
}

// planEnd plans the end of the run.
func (f *faults) planEnd(rng *rand.Rand) {
	f.stop = &sim.Stop{Cluster: f.c}
	switch window := clocks * max(f.s.pace, 4*time.Millisecond); {
	case f.s.resumes.times > 0:
		what := f.stop.KillAll
		if f.s.ends {
			what = f.stop.Shutdown
		}
		f.after(1+perdure.Clock(rng.IntN(clocks-2)), span(rng, 2*window/clocks), what)
	case f.s.ends:
		f.at(span(rng, window), f.stop.Shutdown)
	}
}

// after calls what a while after all slots have finished n clocks.
func (f *faults) after(n perdure.Clock, pause time.Duration, what func()) {
	f.at(time.Millisecond, func() {
		if f.h.MinFinished() < n {
			f.after(n, pause, what)
		} else {
			f.at(pause, what)
		}
	})
}

// judge checks the state left by a job or an ended run, then by the run that resumes it.
func (f *faults) judge() error {
	if !f.stop.HasShutDown() && !f.stop.HasKilledAll() {
		return final(f.c, f.h, f.s)
	}
	if f.stop.HasShutDown() && recovery.RoundsOf(f.s.job.Recovery).Any() {
		record, err := f.c.JobRecord()
		if err == nil {
			err = f.h.CheckStopped(&record, f.c.Disk(), f.s.lossless)
		}
		if err != nil {
			return err
		}
	}
	return f.resume()
}

// TestScarStopsWeakened checks that a last save taken after the named clock is detected.
func TestScarStopsWeakened(t *testing.T) {
	for seed := uint64(1); seed <= mostSeeds; seed++ {
		s, rng := drawStop(seed)
		var v *sim.Violation
		if err := run(t, seed, s, rng, weak(mutation.Set{Cuts: true})); errors.As(err, &v) {
			s, rng = drawStop(seed)
			if calm := run(t, seed, s, rng, nil); calm != nil {
				t.Errorf("seed %d fails with no mechanism disabled: %v", seed, calm)
			}
			t.Logf("seed %d: %v", seed, v)
			return
		}
	}
	t.Errorf("no violation in %d seeds", mostSeeds)
}
