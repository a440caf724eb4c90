package worker

import "time"

// timeSplit counts what a worker's time goes to, from the program's first read to its last clock: computing,
// waiting because a consistency model demands it, and communication (see the time split in docs/formats/run.md).
// The zero timeSplit has counted nothing. It is not safe for concurrent use.
type timeSplit struct {
	began       time.Time // of the first read
	over        time.Time // when the program had done its last clock; zero: it has not
	stale, comm time.Duration
}

// Begin notes a read. From the first on time counts.
func (s *timeSplit) Begin(now time.Time) {
	if s.began.IsZero() {
		s.began = now
	}
}

// Over notes when the program had done its last clock; zero: it goes on.
func (s *timeSplit) Over(at time.Time) { s.over = at }

// Stale and Comm return how long the worker has waited because its model demands it, and has
// communicated.
func (s *timeSplit) Stale() time.Duration { return s.stale }
func (s *timeSplit) Comm() time.Duration  { return s.comm }

// Compute returns how long the program has computed: what is left of the time until now.
func (s *timeSplit) Compute(now time.Time) time.Duration {
	if !s.over.IsZero() {
		now = s.over
	}
	if s.began.IsZero() {
		return 0
	}
	return max(0, now.Sub(s.began)-s.stale-s.comm)
}

// Bound counts time in which the slot's updates were to be seen by others first.
func (s *timeSplit) Bound(waited time.Duration) {
	if !s.began.IsZero() {
		s.stale += waited
	}
}

// Blocked counts time in which a read waited: as far as a server held the answer back, or a push had
// nothing to come for until late before the end, for others to end their clocks; else for messages.
func (s *timeSplit) Blocked(all, held time.Duration, pushed bool, late time.Duration) {
	if s.began.IsZero() {
		return
	}
	stale := min(all, held)
	if pushed {
		stale = max(stale, all-late)
	}
	s.stale += stale
	s.comm += all - stale
}

// Clocked counts time in which a clock was ended, but for the waiting that was counted beyond stale.
func (s *timeSplit) Clocked(took, stale time.Duration) {
	if !s.began.IsZero() {
		s.comm += max(0, took-(s.stale-stale)) // other goroutines may have waited meanwhile
	}
}
