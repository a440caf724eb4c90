package supervisor

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// Schedule tells which faults are due, each once, whether or not the job's
// clock goes back in between. It is pure; not safe for concurrent use.
type Schedule struct {
	pending []Fault
	reached map[When]time.Duration // when a clock was first reached that faults come some time after
}

// NewSchedule makes a schedule of the faults.
func NewSchedule(faults []Fault) *Schedule {
	return &Schedule{pending: slices.Clone(faults), reached: map[When]time.Duration{}}
}

// Due returns the faults that have come due, in the order in which they were
// given, and forgets them. since counts from when the first clock began;
// minClock is the job's MinClock.
func (s *Schedule) Due(since time.Duration, minClock perdure.Clock) (due []Fault) {
	s.pending = slices.DeleteFunc(s.pending, func(f Fault) bool {
		now := s.isDue(f.When, since, minClock)
		if now {
			due = append(due, f)
		}
		return now
	})
	return due
}

func (s *Schedule) isDue(w When, since time.Duration, minClock perdure.Clock) bool {
	if !w.ByClock {
		return w.Since <= since
	}
	at, reached := s.reached[w]
	if !reached && w.Clock <= minClock {
		s.reached[w], at, reached = since, since, true
	}
	return reached && at+w.After <= since
}

// Alarms returns the clocks that pending faults wait for, ascending, each once:
// what perdure.JobSpec.Alarms is for.
func (s *Schedule) Alarms() (clocks []perdure.Clock) {
	for _, f := range s.pending {
		if f.When.ByClock {
			clocks = append(clocks, f.When.Clock)
		}
	}
	slices.Sort(clocks)
	return slices.Compact(clocks)
}
