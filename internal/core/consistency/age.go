package consistency

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// A gradient is old for perdure.ScalePaper when more than oldUpdates updates came
// between; then the learning rate is a tenth (Cao et al. 2024, the stateless server).
const (
	oldUpdates = 50
	oldScale   = 0.1
)

// Origin is what an update was computed from, as its worker knows it.
type Origin struct {
	Basis perdure.Clock // the least MinClock of the rows; < 0: it names no read
	Lag   perdure.Clock // how many of its slot's own clocks before it did not show in them
	Alone bool          // those of the update's shard were read while the shard was out
}

// Age returns how old an update is when it is applied: how many clocks all slots have
// done since the read that it was computed from, MinClock being now before it is
// applied; or Lag, how many of its own slot's clocks before it did
// not show in those rows, if these are more. (Of several slots' queues one is applied
// first, while MinClock waits for the others'.) An update that names no read (a negative
// basis) has no age.
func (o Origin) Age(now perdure.Clock) perdure.Clock {
	if o.Basis < 0 {
		return 0
	}
	return max(o.Lag, now-o.Basis)
}

// Scale returns what an update is multiplied with that is applied at a MinClock, of a
// clock in which a number of slots take part.
func Scale(how perdure.StaleScale, o Origin, now perdure.Clock, slots int) float32 {
	switch {
	case how == perdure.ScaleInverse:
		return float32(1 / (1 + float64(o.Age(now))))
	case how == perdure.ScalePaper && int64(o.Age(now))*int64(slots) > oldUpdates:
		return oldScale
	case how == perdure.ScaleAverage && o.Alone:
		return float32(1 / (float64(max(1, slots)) * (1 + float64(o.Lag))))
	}
	return 1
}

// SlotsOf returns how many of the slots with these spans take part in a clock.
func SlotsOf(spans []words.Span, clock perdure.Clock) (n int) {
	for _, s := range spans {
		if s.Has(clock) {
			n++
		}
	}
	return n
}

// Slots returns how many slots take part in a clock.
func (in *Intake) Slots(clock perdure.Clock) int { return SlotsOf(in.spans, clock) }
