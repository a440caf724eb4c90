package localrun

import (
	"testing"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

// TestGoalMet checks that the summary names the first evaluation that reached the goal, unless a rollback discarded it
// or a later evaluation missed the goal, and the final model's value. A final model that misses the goal has not met
// it.
func TestGoalMet(t *testing.T) {
	accuracy := func(v float64) workload.Eval { return workload.Eval{Accuracy: v, Loss: 1 - v} }
	g, m := settings.Goal{Metric: "accuracy", Value: 0.83}, goalEvaluation{}
	last := goalEvaluation{at: 9 * time.Second, clock: 40}
	got := m.summary(g, accuracy(0.9), last)
	if got == nil || got.Clock != 40 || *got.Met != 0.9 || got.Seconds != 9 {
		t.Errorf("goal that only the final model reaches: %+v", got)
	}
	for i, e := range []struct {
		v          float64
		clock      int
		generation int
		want       int // clock at which it was reached
	}{
		{0.8, 10, 1, 0},
		{0.835, 20, 1, 20},
		{0.84, 30, 1, 20},
		{0.82, 15, 2, 20},
		{0.84, 20, 2, 20},
		{0.82, 23, 2, 0},
		{0.83, 25, 2, 25},
		{0.9, 30, 2, 25},
	} {
		m.record(g, accuracy(e.v), goalEvaluation{
			at: time.Second, clock: perdure.Clock(e.clock),
			generation: perdure.Generation(e.generation),
		})
		if int(m.clock) != e.want {
			t.Errorf("evaluation %d: reached at clock %d, want %d", i, m.clock, e.want)
		}
	}
	got = m.summary(g, accuracy(0.835), last)
	if *got.Met != 0.83 || *got.Final != 0.835 || got.Clock != 25 || got.Seconds != 1 {
		t.Errorf("%+v", got)
	}
	if got := m.summary(g, accuracy(0.825), last); got != nil || missedGoalLine(g, accuracy(0.825)) == "" {
		t.Errorf("model that misses the goal: %+v", got)
	}
	if line := missedGoalLine(settings.Goal{}, accuracy(0.825)); line != "" {
		t.Error(line)
	}
}
