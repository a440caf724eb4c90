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

// met is the evaluation that reached the goal and made the job end. The exported model is of the clock at which all
// stopped, which may be later.
type met struct {
	at         time.Duration // since the first clock began
	clock      perdure.Clock
	value      float64
	generation perdure.Generation // 0: it was not reached
}

// meets notes that an evaluation reaches the goal: the first that does, unless a roll-back takes it back or a later
// one misses the goal, so that training continues.
func (m *met) meets(g settings.Goal, e workload.Eval, now met) {
	switch reached := g.Reached(e); {
	case reached && m.generation != now.generation:
		*m, m.value = now, g.Of(e)
	case !reached && m.generation == now.generation:
		*m = met{}
	}
}

// goalMet is what the summary says of the goal: nil unless the final model reaches it. Where no evaluation before did,
// last is that of the final model.
func (m *met) goalMet(g settings.Goal, final workload.Eval, last met) *rundir.Goal {
	if !g.Reached(final) {
		return nil
	}
	first := *m
	if first.generation == 0 {
		first, first.value = last, g.Of(final)
	}
	return &rundir.Goal{
		Metric: g.Metric, Value: g.Value, Clock: first.clock, Seconds: first.at.Seconds(),
		Met: rundir.Finite(first.value), Final: rundir.Finite(g.Of(final)),
	}
}

// missed says that the final model misses the goal; empty: it reaches it, or there is none of a measure.
func missed(g settings.Goal, final workload.Eval) string {
	if v := g.Of(final); !math.IsNaN(v) && !g.Reached(final) {
		return fmt.Sprintf("the goal %s:%v is missed: the exported model has %.4f", g.Metric, g.Value, v)
	}
	return ""
}
