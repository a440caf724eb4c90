package protocol

import "github.com/perdure/perdure"

// Rate measures how many clocks per second a job completes over the last RateSeconds. It measures between moments at
// which the clock advanced, so the result does not depend on when or how often it is read, or on the length of a clock.
// It keeps a few marks; the zero value is ready to use. It is not safe for concurrent use.
type Rate struct {
	marks []rateMark // oldest first, with ascending clocks
}

type rateMark struct {
	seconds float64
	clock   perdure.Clock
}

const (
	// RateSeconds is the window of a Rate in seconds. The window is longer if it would contain fewer than two marks.
	RateSeconds = 2.0
	// rateMarks is the approximate number of marks in the window.
	rateMarks = 16
)

// Note records the job's clock at a time in seconds. A rollback resets the rate.
func (r *Rate) Note(seconds float64, clock perdure.Clock) {
	mark, n := rateMark{seconds, clock}, len(r.marks)
	switch {
	case n > 0 && clock < r.marks[n-1].clock:
		r.marks = append(r.marks[:0], mark)
	case n > 0 && clock == r.marks[n-1].clock:
		return
	case n > 1 && seconds-r.marks[n-2].seconds < RateSeconds/rateMarks:
		r.marks[n-1] = mark
	default:
		r.marks = append(r.marks, mark)
	}
	r.forget(seconds)
}

// forget drops marks that are not needed at a time. It keeps at least two marks, and one from before the window.
func (r *Rate) forget(seconds float64) {
	old := 0
	for old+2 < len(r.marks) && r.marks[old+1].seconds <= seconds-RateSeconds {
		old++
	}
	r.marks = append(r.marks[:0], r.marks[old:]...)
}

// PerSecond returns the rate at a time, in clocks per second; known is false until two clocks were noted. If the next
// clock is already taking longer than those in the window, the rate is computed as if it ended now.
func (r *Rate) PerSecond(seconds float64) (rate float64, known bool) {
	r.forget(seconds)
	n := len(r.marks)
	if n < 2 {
		return 0, false
	}
	first, last := r.marks[0], r.marks[n-1]
	if took := max(last.seconds-first.seconds, seconds-last.seconds); took > 0 {
		return float64(last.clock-first.clock) / took, true
	}
	return 0, false
}
