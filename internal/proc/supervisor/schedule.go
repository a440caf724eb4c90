package supervisor

import (
	"slices"
	"time"

	"github.com/perdure/perdure"
)

// Schedule determines which faults are due, each once, even if the job's clock rolls back. It does no I/O. It is not
// safe for concurrent use.
type Schedule struct {
	pending []Fault
	reached map[When]time.Duration // for faults that occur some time after a clock: when that clock was first reached
}

// NewSchedule returns a schedule of the faults.
func NewSchedule(faults []Fault) *Schedule {
	return &Schedule{pending: slices.Clone(faults), reached: map[When]time.Duration{}}
}

// Due removes and returns the faults that are due, in the order in which they were given. since is the time since the
// first clock started; minClock is the job's MinClock.
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

// Alarms returns the clocks that pending faults wait for, ascending and without duplicates, for perdure.JobSpec.Alarms.
func (s *Schedule) Alarms() (clocks []perdure.Clock) {
	for _, f := range s.pending {
		if f.When.ByClock {
			clocks = append(clocks, f.When.Clock)
		}
	}
	slices.Sort(clocks)
	return slices.Compact(clocks)
}
