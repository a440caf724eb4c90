package tally

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/workload"
)

// TestGoalMet: the first evaluation that reaches the goal is what is told, unless a
// roll-back took it back, and the final model's figure beside it.
func TestGoalMet(t *testing.T) {
	accuracy := func(v float64) workload.Eval { return workload.Eval{Accuracy: v, Loss: 1 - v} }
	g, m := settings.Goal{Metric: "accuracy", Value: 0.83}, met{}
	if m.goalMet(g, accuracy(0.9)) != nil {
		t.Error("a goal is reached that was never seen to be")
	}
	for i, e := range []struct {
		v          float64
		clock      int
		generation int
		want       int // the clock at which it was reached
	}{{0.8, 10, 1, 0}, {0.835, 20, 1, 20}, {0.84, 30, 1, 20}, {0.82, 15, 2, 20}, {0.83, 25, 2, 25}, {0.9, 30, 2, 25}} {
		m.meets(g, accuracy(e.v), met{
			at: time.Second, clock: perdure.Clock(e.clock),
			generation: perdure.Generation(e.generation),
		})
		if int(m.clock) != e.want {
			t.Errorf("evaluation %d: reached at clock %d, want %d", i, m.clock, e.want)
		}
	}
	got := m.goalMet(g, accuracy(0.825))
	if *got.Met != 0.83 || *got.Final != 0.825 || got.Clock != 25 || got.Seconds != 1 {
		t.Errorf("%+v", got)
	}
}
