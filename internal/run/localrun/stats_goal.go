package localrun

import (
	"fmt"
	"math"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

// goalEvaluation is the evaluation that reached the goal and ended the job. The exported model is that of the clock at
// which all workers stopped, which may be later.
type goalEvaluation struct {
	at         time.Duration // since the first clock started
	clock      perdure.Clock
	value      float64
	generation perdure.Generation // 0: the goal was not reached
}

// record records the first evaluation that reaches the goal. A rollback discards it, as does a later evaluation that
// misses the goal, because training then continues.
func (m *goalEvaluation) record(g settings.Goal, e workload.Eval, now goalEvaluation) {
	switch reached := g.Reached(e); {
	case reached && m.generation != now.generation:
		*m, m.value = now, g.Of(e)
	case !reached && m.generation == now.generation:
		*m = goalEvaluation{}
	}
}

// summary returns the goal for the summary, or nil unless the final model reaches it. last describes the final model,
// and is used if no earlier evaluation reached the goal.
func (m *goalEvaluation) summary(g settings.Goal, final workload.Eval, last goalEvaluation) *rundir.Goal {
	if !g.Reached(final) {
		return nil
	}
	first := *m
	if first.generation == 0 {
		first, first.value = last, g.Of(final)
	}
	return &rundir.Goal{
		Metric: g.Metric, Value: g.Value, Clock: first.clock, Seconds: first.at.Seconds(),
		Met: rundir.FiniteOrNil(first.value), Final: rundir.FiniteOrNil(g.Of(final)),
	}
}

// missedGoalLine returns a line if the final model misses the goal. It returns "" if the model reaches it or lacks the
// goal's measure.
func missedGoalLine(g settings.Goal, final workload.Eval) string {
	if v := g.Of(final); !math.IsNaN(v) && !g.Reached(final) {
		return fmt.Sprintf("the goal %s:%v is missed: the exported model has %.4f", g.Metric, g.Value, v)
	}
	return ""
}
