package settings

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload"
)

// Goal is the goal of --until: "accuracy:0.8", "loss:0.5", "rmse:0.9", or "time:2m", whose value is in seconds.
type Goal struct {
	Metric string  `json:"metric,omitempty"`
	Value  float64 `json:"value,omitempty"`
}

// parseGoal parses a goal and checks that the named workload can reach it.
func parseGoal(s, name string) (g Goal, err error) {
	if s == "" {
		return g, nil
	}
	info, err := workload.Find(name)
	if err != nil {
		return g, err
	}
	metric, text, _ := strings.Cut(s, ":")
	if metric == OverTime {
		d, err := time.ParseDuration(text)
		if err != nil || d <= 0 {
			return g, perdure.Usagef("invalid --until %q: write time:T with a time above 0, for example time:2m", s)
		}
		return Goal{metric, d.Seconds()}, nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || !(v > 0) || math.IsInf(v, 0) || metric == "accuracy" && v > 1 ||
		!slices.Contains([]string{"accuracy", "loss", "rmse"}, metric) {
		return g, perdure.Usagef("invalid --until %q: write accuracy:A with 0 < A ≤ 1, loss:L with L > 0, rmse:R "+
			"with R > 0, or time:T", s)
	}
	if !slices.Contains(info.Measures, metric) {
		return g, perdure.Usagef("--until %q: workload %s has no %s; choose %s", s, name, metric,
			strings.Join(info.Measures, " or "))
	}
	return Goal{metric, v}, nil
}

// OverTime is the metric of a goal that ends the run after a fixed duration.
const OverTime = "time"

// Reached reports whether an evaluation meets the goal. Metrics that the evaluation lacks are NaN.
func (g Goal) Reached(e workload.Eval) bool {
	v := g.Of(e)
	if g.Metric == "accuracy" {
		return v >= g.Value
	}
	return v <= g.Value
}

// Of returns the evaluation's value of the goal's metric, or NaN if the evaluation lacks it.
func (g Goal) Of(e workload.Eval) float64 {
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
