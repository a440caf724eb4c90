package consistency

import "github.com/perdure/perdure"

// A gradient is old for perdure.ScalePaper when more than oldUpdates updates came
// between; then the learning rate is a tenth (Cao et al. 2024, the stateless server).
const (
	oldUpdates = 50
	oldScale   = 0.1
)

// Age returns how old an update is when it is applied: how many clocks all slots have
// done since the read that it was computed from, of rows of MinClock basis, MinClock
// being now before it is applied; or lag, how many of its own slot's clocks before it did
// not show in those rows, if these are more. (Of several slots' queues one is applied
// first, while MinClock waits for the others'.) An update that names no read (a negative
// basis) has no age.
func Age(now, basis, lag perdure.Clock) perdure.Clock {
	if basis < 0 {
		return 0
	}
	return max(lag, now-basis)
}

// Scale returns what an update of the given age is multiplied with, of a job in which
// so many slots take part.
func Scale(how perdure.StaleScale, age perdure.Clock, slots int) float32 {
	switch {
	case how == perdure.ScaleInverse:
		return float32(1 / (1 + float64(age)))
	case how == perdure.ScalePaper && int64(age)*int64(slots) > oldUpdates:
		return oldScale
	}
	return 1
}

// Slots returns how many slots take part in a clock.
func (in *Intake) Slots(clock perdure.Clock) (n int) {
	for _, s := range in.spans {
		if s.Has(clock) {
			n++
		}
	}
	return n
}
