package consistency

import (
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

func TestAge(t *testing.T) {
	for _, c := range []struct{ now, basis, lag, want perdure.Clock }{
		{7, 7, 0, 0},
		{7, 3, 0, 4},
		{7, 0, 0, 7},
		{3, 7, 0, 0},
		{7, -1, 0, 0},
		{0, 0, 0, 0},
		{7, 3, 2, 4},
		{7, 3, 5, 5},
		{3, 7, 5, 5},
		{7, -1, 5, 0},
	} {
		if got := (Origin{Basis: c.basis, Lag: c.lag}).Age(c.now); got != c.want {
			t.Errorf("at MinClock %d an update based on %d with lag %d has age %d, want %d", c.now, c.basis,
				c.lag, got, c.want)
		}
	}
}

func TestScale(t *testing.T) {
	for _, c := range []struct {
		how   perdure.StaleScale
		age   perdure.Clock
		slots int
		want  float32
	}{
		{"", 1000, 4, 1},
		{perdure.ScaleNone, 1000, 4, 1},
		{perdure.ScaleInverse, 0, 4, 1},
		{perdure.ScaleInverse, 1, 4, 0.5},
		{perdure.ScaleInverse, 3, 1, 0.25},
		{perdure.ScalePaper, 0, 4, 1},
		{perdure.ScalePaper, 50, 1, 1},
		{perdure.ScalePaper, 51, 1, 0.1},
		{perdure.ScalePaper, 12, 4, 1},
		{perdure.ScalePaper, 13, 4, 0.1},
		{perdure.ScalePaper, 1 << 40, 1 << 20, 0.1},
	} {
		if got := Scale(c.how, Origin{Basis: 3}, 3+c.age, c.slots); got != c.want {
			t.Errorf("%s: age %d, %d slots: factor %v, want %v", c.how, c.age, c.slots,
				got, c.want)
		}
	}
}

// ScaleAverage averages updates of slots that worked alone, whatever their age, and steps from the same rows as if each
// were the average of all of them.
func TestScaleAverage(t *testing.T) {
	for _, c := range []struct {
		o     Origin
		slots int
		want  float32
	}{
		{Origin{}, 4, 1},
		{Origin{Lag: 9}, 4, 1},
		{Origin{DuringOutage: true}, 4, 0.25},
		{Origin{DuringOutage: true}, 1, 1},
		{Origin{DuringOutage: true}, 0, 1},
		{Origin{DuringOutage: true, Lag: 9}, 1, 0.1},
		{Origin{DuringOutage: true, Lag: 1}, 4, 0.125},
		{Origin{DuringOutage: true, Lag: 1, Basis: -1}, 4, 0.125},
	} {
		if got := Scale(perdure.ScaleAverage, c.o, 1000, c.slots); got != c.want {
			t.Errorf("origin %+v, %d slots: factor %v, want %v", c.o, c.slots, got, c.want)
		}
	}
}

// The age of an update and the number of participating slots follow from the log alone.
func TestSlotsOfClock(t *testing.T) {
	in := NewSequencer(perdure.ClockOneStep, make([]perdure.Clock, 2), mutation.Set{})
	in.SetMembership(1, []protocol.Interval{{Until: 5}, {}, {From: 3}})
	for clock, want := range map[perdure.Clock]int{0: 2, 2: 2, 3: 3, 4: 3, 5: 2, 100: 2} {
		if got := in.NumParticipants(clock); got != want {
			t.Errorf("clock %d: %d slots participate, want %d", clock, got, want)
		}
	}
}
