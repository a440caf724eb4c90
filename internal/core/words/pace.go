package words

import "github.com/perdure/perdure"

// Rate is how many clocks a job does in a second: over the last RateSeconds, measured
// between moments at which a clock was new. So it does not matter when somebody looks, nor
// how often, nor that a clock is long. It keeps a few marks; the zero value is ready. It is
// not safe for concurrent use.
type Rate struct {
	marks []rateMark // the oldest first; clocks rise
}

type rateMark struct {
	seconds float64
	clock   perdure.Clock
}

const (
	// RateSeconds is the time that a Rate looks back over, in seconds, if there were two
	// clocks in it.
	RateSeconds = 2.0
	// rateMarks is how many marks there are in that time, about.
	rateMarks = 16
)

// Note says the job's clock at a time, in seconds. After a roll-back the rate begins anew.
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

// forget drops marks that are not needed at a time: two stay, and one from before the window.
func (r *Rate) forget(seconds float64) {
	old := 0
	for old+2 < len(r.marks) && r.marks[old+1].seconds <= seconds-RateSeconds {
		old++
	}
	r.marks = append(r.marks[:0], r.marks[old:]...)
}

// PerSecond returns the rate at a time, in clocks per second; it is not known until
// two clocks were noted. Where the next clock takes longer than all in the window did, the
// rate is what it would be if it came now.
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
