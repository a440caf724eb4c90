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
}

// NewSchedule makes a schedule of the faults.
func NewSchedule(faults []Fault) *Schedule { return &Schedule{pending: slices.Clone(faults)} }

// Due returns the faults that have come due, in the order in which they were
// given, and forgets them. since counts from when the first clock began;
// minClock is the job's MinClock.
func (s *Schedule) Due(since time.Duration, minClock perdure.Clock) (due []Fault) {
	s.pending = slices.DeleteFunc(s.pending, func(f Fault) bool {
		now := f.When.ByClock && f.When.Clock <= minClock || !f.When.ByClock && f.When.Since <= since
		if now {
			due = append(due, f)
		}
		return now
	})
	return due
}

// Next returns the earliest time of a pending fault that waits for one.
func (s *Schedule) Next() (since time.Duration, ok bool) {
	for _, f := range s.pending {
		if !f.When.ByClock && (!ok || f.When.Since < since) {
			since, ok = f.When.Since, true
		}
	}
	return since, ok
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
