package consistency

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// For perdure.ScalePaper a gradient is old when more than oldUpdates updates came in between. The learning rate is then
// a tenth (Cao et al. 2024, the stateless server).
const (
	oldUpdates = 50
	oldScale   = 0.1
)

// Origin describes the reads that an update was computed from, as its worker knows them.
type Origin struct {
	Basis        perdure.Clock // the smallest MinClock of the rows; < 0: no read
	Lag          perdure.Clock // how many of its slot's own earlier clocks did not show in the rows
	DuringOutage bool          // the rows of the update's shard were read while the shard was unavailable
}

// Age returns the age of an update that is applied at MinClock now: how many clocks all slots have done since the read
// that it was computed from. If Lag is larger, Age returns Lag. (When several slots' queued updates are applied, one
// slot's come first while MinClock waits for the others'.) An update without a read (a negative basis) has age 0.
func (o Origin) Age(now perdure.Clock) perdure.Clock {
	if o.Basis < 0 {
		return 0
	}
	return max(o.Lag, now-o.Basis)
}

// Scale returns the factor for an update that is applied at MinClock now, of a clock in which the given number of slots
// participate.
func Scale(how perdure.StaleScale, o Origin, now perdure.Clock, slots int) float32 {
	switch {
	case how == perdure.ScaleInverse:
		return float32(1 / (1 + float64(o.Age(now))))
	case how == perdure.ScalePaper && int64(o.Age(now))*int64(slots) > oldUpdates:
		return oldScale
	case how == perdure.ScaleAverage && o.DuringOutage:
		return float32(1 / (float64(max(1, slots)) * (1 + float64(o.Lag))))
	}
	return 1
}

// NumParticipants returns how many of the slots with these membership intervals participate in a clock.
func NumParticipants(intervals []protocol.Interval, clock perdure.Clock) (n int) {
	for _, s := range intervals {
		if s.Has(clock) {
			n++
		}
	}
	return n
}

// NumParticipants returns how many slots participate in a clock.
func (in *Sequencer) NumParticipants(clock perdure.Clock) int {
	return NumParticipants(in.intervals, clock)
}
