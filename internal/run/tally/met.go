package tally

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/workload"
)

// met is the evaluation that reached the goal. What comes until all have stopped is in the
// model, too: so it may be another one that is exported, and is judged again.
type met struct {
	at         time.Duration // since the first clock began
	clock      perdure.Clock
	value      float64
	generation perdure.Generation // 0: it was not reached
}

// meets notes that an evaluation reaches the goal, the first that does: it ends the
// job, unless a roll-back takes it back.
func (m *met) meets(g settings.Goal, e workload.Eval, now met) {
	if g.Reached(e) && m.generation != now.generation {
		*m, m.value = now, g.Of(e)
	}
}

// goalMet is what the summary says of the goal; nil: none was reached.
func (m *met) goalMet(g settings.Goal, final workload.Eval) *rundir.Goal {
	if m.generation == 0 {
		return nil
	}
	return &rundir.Goal{
		Metric: g.Metric, Value: g.Value, Clock: m.clock, Seconds: m.at.Seconds(),
		Met: rundir.Finite(m.value), Final: rundir.Finite(g.Of(final)),
	}
}
