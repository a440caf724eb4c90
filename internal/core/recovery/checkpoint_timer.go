package recovery

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// With an interval of auto (checkpoint:auto, for example) the job itself decides when the next checkpoint is due. It
// picks the interval with the lowest cost, given how long a checkpoint takes and how often processes fail. The clocks
// of the cuts therefore depend on the machine; the rows at a given clock do not.
//
// The caller keeps the part that must survive a restart of the coordinator, a [protocol.Saving]. A [Timer]
// holds the rest. It counts time in ticks, and is not safe for concurrent use.

const (
	// firstSaved is the number of clocks before the first checkpoint, which measures how long a checkpoint takes.
	firstSaved = 2
	// minSaveSeconds is the shortest believable duration of a checkpoint, in seconds.
	minSaveSeconds = 1e-3
	// intervalTolerance: the interval is changed if it is this many times as long as the best one, or as short. Up to
	// there it costs at most a twelfth more than the best.
	intervalTolerance = 1.5
)

// Timer measures a job and chooses its checkpoint interval.
type Timer struct {
	tickSeconds float64       // length of a tick
	save        float64       // mean duration of a checkpoint, in seconds; 0: unknown
	ranAt       int64         // the last tick that Saving.Ran includes
	namedAt     int64         // the tick at which the latest cut was named
	paceAt      int64         // a tick at which the workers' clock was paceClock; 0: none
	paceClock   perdure.Clock // no clock was redone since paceAt
}

// NewTimer returns a timer with ticks of the given length in seconds.
func NewTimer(tickSeconds float64) Timer {
	return Timer{tickSeconds: tickSeconds}
}

// SetTick sets the length of a tick in seconds.
func (t *Timer) SetTick(seconds float64) { t.tickSeconds = seconds }

// JobProgress is the progress of a job at a tick.
type JobProgress struct {
	Tick    int64
	Working perdure.Clock // the highest clock that any slot works on; with cuts by slot, the mean clock
	Durable perdure.Clock // of the newest checkpoint
}

// Due reports whether a cut is due.
func (t *Timer) Due(s protocol.Saving, at JobProgress) bool {
	if t.paceAt == 0 && at.Working > at.Durable {
		t.paceAt, t.paceClock = at.Tick, at.Working
	}
	if s.Interval > 0 {
		return at.Working > at.Durable && float64(at.Tick-t.namedAt)*t.tickSeconds >= s.Interval
	}
	return at.Working >= at.Durable+firstSaved
}

// Named records that a cut was named at a tick.
func (t *Timer) Named(tick int64) { t.namedAt = tick }

// Failed records that a failure made the job restore rows from a checkpoint, and chooses a new interval. told is the
// message for users, or "" if the interval stays the same. mtbf is the mean time between failures configured by the
// user; 0: none.
func (t *Timer) Failed(s protocol.Saving, at JobProgress, mtbf float64) (next protocol.Saving, sent string) {
	s.Failures++
	t.paceAt = 0 // clocks are done again
	return t.choose(s, at, mtbf)
}

// Saved records how long a checkpoint took, in seconds, and chooses a new interval, as Failed does. The newest duration
// has a weight of one half in the mean.
func (t *Timer) Saved(
	s protocol.Saving, at JobProgress, mtbf, took float64,
) (next protocol.Saving, sent string) {
	save := max(minSaveSeconds, took)
	if t.save > 0 {
		save = (save + t.save) / 2
	}
	t.save = save
	return t.choose(s, at, mtbf)
}

// choose chooses the interval, and returns a message if it changes by much. Time without a timer does not count as time
// in which the job ran.
func (t *Timer) choose(s protocol.Saving, at JobProgress, mtbf float64) (next protocol.Saving, sent string) {
	s.Ran, t.ranAt = s.Ran+float64(at.Tick-t.ranAt)*t.tickSeconds, at.Tick
	if t.save == 0 {
		return s, "" // nothing has been measured yet
	}
	known := "given"
	switch {
	case mtbf > 0:
	case s.Failures > 0:
		mtbf = ExpectedMTBF(s.Failures, s.Ran)
		known = fmt.Sprintf("assumed 1 in %s, seen %d in %s", FormatTime(priorMTBF), s.Failures, FormatTime(s.Ran))
	default:
		mtbf, known = ExpectedMTBF(0, s.Ran), "assumed, because nothing has failed yet"
	}
	interval, why := CheckpointInterval(t.save, mtbf)
	switch much := s.Interval == 0 || interval >= s.Interval*intervalTolerance ||
		s.Interval >= interval*intervalTolerance; {
	case interval == 0:
		return s, ""
	case !much && s.Interval < minIntervalFactor*t.save:
		interval = s.Interval * intervalTolerance // checkpoints take too large a share, and their durations vary
	case !much:
		return s, ""
	}
	s.Interval, s.Why = interval, why+" ("+known+")"
	about := ""
	if done := at.Working; t.paceAt > 0 && done > t.paceClock && at.Tick > t.paceAt {
		clock := float64(at.Tick-t.paceAt) * t.tickSeconds / float64(done-t.paceClock)
		about = fmt.Sprintf(", now about %d clocks", IntervalClocks(interval, clock))
	}
	return s, fmt.Sprintf("checkpoints every %s%s; %s", FormatTime(interval), about, s.Why)
}
