package main

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
	"github.com/perdure/perdure/workload"
)

// evaluator evaluates the model while it is trained. Where all tables are bsp it reads
// what the slot trains on, the model of exactly this clock. Else the slot's own rows
// may be older than the model by as much as the tables allow, and reads of the slot
// are measured and pushed: so it reads the newest rows that servers have, through a
// client that has no slot.
type evaluator struct {
	w       workload.Workload
	own     *clientTables
	observe func(ctx context.Context) (*worker.Client, error)

	c *worker.Client // without a slot; nil: not needed so far
	t *clientTables
}

func (j *evaluator) evaluate(ctx context.Context, job *perdure.JobSpec) (workload.Eval, error) {
	stale := slices.ContainsFunc(j.w.Tables(), func(t perdure.TableSpec) bool { return job.ConsistencyOf(t.Name).Kind != perdure.BSP })
	if !stale {
		return j.w.Evaluate(ctx, j.own)
	}
	if j.c == nil {
		c, err := j.observe(ctx)
		if err != nil {
			return workload.Eval{}, err
		}
		j.c = c
		if j.t, err = openTables(ctx, c, j.w); err != nil {
			return workload.Eval{}, err
		}
	}
	j.c.At(0) // any rows, and none that were read before
	return j.w.Evaluate(ctx, j.t)
}

func (j *evaluator) close() {
	if j.c != nil {
		_ = j.c.Close() // never fails
	}
}

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
	switch g.Metric {
	case "accuracy":
		return e.Accuracy >= g.Value
	case "loss":
		return e.Loss <= g.Value
	case "rmse":
		return e.RMSE <= g.Value
	}
	return false
}
