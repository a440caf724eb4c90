package membership

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// With an interval of auto (checkpoint:auto, for example) the job itself decides when the next checkpoint is due: after
// the time that costs least, given how long a checkpoint takes and how often processes fail. The clocks of the cuts
// therefore depend on the machine; the rows at a given clock do not.
//
// The caller keeps what must survive the coordinator, a [words.Saving]. A [checkpointTimer] holds the rest. It counts
// time in ticks, and is not safe for concurrent use.

const (
	// firstSaved is after how many clocks the first checkpoint is made, so that it is known
	// how long one takes.
	firstSaved = 2
	// leastSave is how long a checkpoint takes at least, in seconds, as far as is believed.
	leastSave = 1e-3
	// muchOff is a factor. An interval is changed when it is off the best one by more than that;
	// until then it costs at most a twelfth more than the best.
	muchOff = 1.5
)

// checkpointTimer measures a job and chooses its interval.
type checkpointTimer struct {
	tickSeconds float64       // how long a tick is
	save        float64       // how long a checkpoint takes, in seconds; 0: not known
	ranAt       int64         // the tick at which Saving.Ran was right
	namedAt     int64         // the tick at which a cut was named last
	paceAt      int64         // a tick, and the clock that workers stood at then; 0: none
	paceClock   perdure.Clock // from then on none was done again
}

// newCheckpointTimer returns a timer whose ticks are that long, in seconds.
func newCheckpointTimer(tickSeconds float64) checkpointTimer {
	return checkpointTimer{tickSeconds: tickSeconds}
}

// SetTick says how long a tick is, in seconds.
func (t *checkpointTimer) SetTick(seconds float64) { t.tickSeconds = seconds }

// progress is how far a job has come, at a tick.
type progress struct {
	Tick    int64
	Working perdure.Clock // the highest clock that anybody works on
	Durable perdure.Clock // of the newest checkpoint
}

// Due reports whether it is time for a cut.
func (t *checkpointTimer) Due(s words.Saving, at progress) bool {
	if t.paceAt == 0 && at.Working > at.Durable {
		t.paceAt, t.paceClock = at.Tick, at.Working
	}
	if s.Interval > 0 {
		return at.Working > at.Durable && float64(at.Tick-t.namedAt)*t.tickSeconds >= s.Interval
	}
	return at.Working >= at.Durable+firstSaved
}

// Named notes that a cut was named at a tick.
func (t *checkpointTimer) Named(tick int64) { t.namedAt = tick }

// Failed notes that rows are taken from a checkpoint since somebody died, and chooses the
// interval anew; told is what to tell people of that, "" if it stays as it is. mtbf is the
// time between two failures that a user has given; 0: none.
func (t *checkpointTimer) Failed(s words.Saving, at progress, mtbf float64) (next words.Saving, told string) {
	s.Failures++
	t.paceAt = 0 // clocks are done again
	return t.choose(s, at, mtbf)
}

// Saved takes over how long a checkpoint took, in seconds, as a mean in which the newest
// one is a half, and chooses the interval anew, as Failed does.
func (t *checkpointTimer) Saved(s words.Saving, at progress, mtbf, took float64) (next words.Saving, told string) {
	save := max(leastSave, took)
	if t.save > 0 {
		save = (save + t.save) / 2
	}
	t.save = save
	return t.choose(s, at, mtbf)
}

// choose chooses the interval, and says so where it changes by much. What passed while
// there was no timer does not count as time in which the job went on.
func (t *checkpointTimer) choose(s words.Saving, at progress, mtbf float64) (next words.Saving, told string) {
	s.Ran, t.ranAt = s.Ran+float64(at.Tick-t.ranAt)*t.tickSeconds, at.Tick
	if t.save == 0 {
		return s, "" // nothing was measured yet
	}
	known := "given"
	switch {
	case mtbf > 0:
	case s.Failures > 0:
		mtbf = ExpectedMTBF(s.Failures, s.Ran)
		known = fmt.Sprintf("assumed 1 in %s, seen %d in %s", Seconds(priorMTBF), s.Failures, Seconds(s.Ran))
	default:
		mtbf, known = ExpectedMTBF(0, s.Ran), "assumed, nothing has failed yet"
	}
	interval, why := CheckpointInterval(t.save, mtbf)
	switch much := s.Interval == 0 || interval >= s.Interval*muchOff || s.Interval >= interval*muchOff; {
	case interval == 0:
		return s, ""
	case !much && s.Interval < leastInterval*t.save:
		interval = s.Interval * muchOff // too much is saved; and saves vary
	case !much:
		return s, ""
	}
	s.Interval, s.Why = interval, why+" ("+known+")"
	about := ""
	if done := at.Working; t.paceAt > 0 && done > t.paceClock && at.Tick > t.paceAt {
		clock := float64(at.Tick-t.paceAt) * t.tickSeconds / float64(done-t.paceClock)
		about = fmt.Sprintf(", now about %d clocks", IntervalClocks(interval, clock))
	}
	return s, fmt.Sprintf("checkpoints every %s%s; %s", Seconds(interval), about, s.Why)
}
