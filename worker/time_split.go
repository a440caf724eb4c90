package worker

import "time"

// timeSplit divides a worker's time, from the program's first read to its last clock, into computing, waiting because a
// consistency model requires it, and communication (see time_split in docs/formats/summary.md). The zero timeSplit is
// ready to use. It is not safe for concurrent use.
type timeSplit struct {
	began time.Time // time of the first read
	over  time.Time // when the program ended its last clock; zero: it has not
	calls waits     // time in calls of the client
	own   *[2]waits // what the program has measured itself, and calls at its last report; nil: calls counts
}

// waits is time that was not spent on computing.
type waits struct{ stale, comm time.Duration }

// Begin records a read. Time counts from the first read on.
func (s *timeSplit) Begin(now time.Time) {
	if s.began.IsZero() {
		s.began = now
	}
}

// SetEnd records when the program ended its last clock; zero: it continues.
func (s *timeSplit) SetEnd(at time.Time) { s.over = at }

// Stale and Comm return how long the worker has waited because its model requires it, and how long it has communicated.
func (s *timeSplit) Stale() time.Duration { return s.waited().stale }
func (s *timeSplit) Comm() time.Duration  { return s.waited().comm }

func (s *timeSplit) waited() *waits {
	if s.own != nil {
		return &s.own[0]
	}
	return &s.calls
}

// AddOwn counts time for which the program says that it has waited since the last call. From the first call on, only
// this time counts: other threads than the one that computes may call the client. It is divided like the time in calls.
func (s *timeSplit) AddOwn(waited time.Duration) {
	if s.own == nil {
		s.own = &[2]waits{s.calls, s.calls}
	}
	own, last := &s.own[0], &s.own[1]
	stale, comm := s.calls.stale-last.stale, s.calls.comm-last.comm
	if stale+comm > 0 {
		stale = time.Duration(float64(waited) * float64(stale) / float64(stale+comm))
	}
	own.stale, own.comm, *last = own.stale+stale, own.comm+waited-stale, s.calls
}

// Compute returns how long the program has computed until now: the time that is neither Stale nor Comm.
func (s *timeSplit) Compute(now time.Time) time.Duration {
	if !s.over.IsZero() {
		now = s.over
	}
	if s.began.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.began)-s.Stale()-s.Comm())
}

// AddBoundWait counts time in which the worker waited until other slots could see its updates.
func (s *timeSplit) AddBoundWait(waited time.Duration) {
	if !s.began.IsZero() {
		s.calls.stale += waited
	}
}

// Blocked counts time in which a read waited. Two parts count as waiting for other slots to end their clocks: the time
// for which a server held the answer back, and, for a pushed row, the time before the last late, when there was nothing
// to push yet. The rest is communication.
func (s *timeSplit) Blocked(all, held time.Duration, pushed bool, late time.Duration) {
	if s.began.IsZero() {
		return
	}
	stale := min(all, held)
	if pushed {
		stale = max(stale, all-late)
	}
	s.calls.stale += stale
	s.calls.comm += all - stale
}

// AddClockTime counts the time that ending a clock took, except for the waiting counted since calls.stale was stale.
func (s *timeSplit) AddClockTime(took, stale time.Duration) {
	if !s.began.IsZero() {
		s.calls.comm += max(0, took-(s.calls.stale-stale)) // other goroutines may have waited in the meantime
	}
}
