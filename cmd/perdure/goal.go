package main

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/workload"
)

// goal is what --until asks for: "accuracy:0.8", "loss:0.5", "rmse:0.9", or
// "time:2m", whose value is in seconds.
type goal struct {
	Metric string  `json:"metric,omitempty"`
	Value  float64 `json:"value,omitempty"`
}

// parseGoal reads a goal that a workload of that name can reach.
func parseGoal(s, name string) (g goal, err error) {
	if s == "" {
		return g, nil
	}
	info, err := workload.Find(name)
	if err != nil {
		return g, err
	}
	metric, text, _ := strings.Cut(s, ":")
	if metric == overTime {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return g, fmt.Errorf("%w: --until %q: write time:T with a time above 0, for example time:2m", perdure.ErrUsage, s)
		}
		return goal{metric, d.Seconds()}, nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) || metric == "accuracy" && v > 1 || !slices.Contains([]string{"accuracy", "loss", "rmse"}, metric) {
		return g, fmt.Errorf("%w: --until %q: write accuracy:A with 0 < A ≤ 1, loss:L with L > 0, rmse:R with R > 0, or time:T", perdure.ErrUsage, s)
	}
	if !slices.Contains(info.Measures, metric) {
		return g, fmt.Errorf("%w: --until %q: workload %s has no %s; choose %s", perdure.ErrUsage, s, name, metric, strings.Join(info.Measures, " or "))
	}
	return goal{metric, v}, nil
}

// overTime is the goal that is reached when so much time is over.
const overTime = "time"

// reached compares with what the evaluation has: what does not apply is NaN.
func (g goal) reached(e workload.Eval) bool {
	v := g.of(e)
	if g.Metric == "accuracy" {
		return v >= g.Value
	}
	return v <= g.Value
}

// of returns what the goal is about; NaN: the evaluation does not have it.
func (g goal) of(e workload.Eval) float64 {
	switch g.Metric {
	case "accuracy":
		return e.Accuracy
	case "loss":
		return e.Loss
	case "rmse":
		return e.RMSE
	}
	return math.NaN()
}

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
func (m *met) meets(g goal, e workload.Eval, now met) {
	if g.reached(e) && m.generation != now.generation {
		*m, m.value = now, g.of(e)
	}
}

// goalMet is what the summary says of the goal; nil: none was reached.
func (m *met) goalMet(g goal, final workload.Eval) *rundir.Goal {
	if m.generation == 0 {
		return nil
	}
	return &rundir.Goal{Metric: g.Metric, Value: g.Value, Clock: m.clock, Seconds: m.at.Seconds(), Met: finite(m.value), Final: finite(g.of(final))}
}

// goalLine says what the goal was reached with, where the final model has another figure.
func goalLine(s *rundir.Summary) (line [2]string, differs bool) {
	g := s.Goal
	if g == nil || g.Met == nil || g.Final != nil && *g.Met == *g.Final {
		return line, false
	}
	return [2]string{"goal met", fmt.Sprintf("%s %.4f at clock %d; the model above is of clock %d, when all had stopped", g.Metric, *g.Met, g.Clock, s.Clocks)}, true
}
