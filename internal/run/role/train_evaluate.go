package role

import (
	"context"
	"slices"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// evaluator evaluates the model during training. If all tables are bsp, it reads the slot's own rows, which are the
// model of exactly this clock. Otherwise the slot's rows may be older than the model, as far as the tables allow, and
// the slot's reads are measured and pushed. It then reads the servers' newest rows through a client without a slot.
type evaluator struct {
	w       workload.Workload
	own     *Tables
	observe func(ctx context.Context) (*worker.Client, error)

	c *worker.Client // without a slot; nil: not needed so far
	t *Tables
}

// backlogPatience is how long an evaluation waits for shards that are applying the updates of an outage.
const backlogPatience = 2 * time.Second

// Evaluation is an evaluation of the model. Backlog reports whether the rows lacked some updates because a shard had
// just become available again.
type Evaluation struct {
	workload.Eval
	Backlog bool
}

// EvaluateAtRest evaluates the rows at one moment: once no shard lags behind, or after backlogPatience. It repeats the
// evaluation if a shard was unavailable during it.
func EvaluateAtRest(
	ctx context.Context, c *worker.Client, judge func() (workload.Eval, error),
) (v Evaluation, err error) {
	for range 2 {
		rest, err := c.AwaitCaughtUp(ctx, backlogPatience)
		if err != nil {
			return v, err
		}
		before := c.Opens()
		c.SetReadClock(0) // any rows, but none that were read before
		if v.Eval, err = judge(); err != nil {
			return v, err
		}
		there := c.Opens() == before
		if v.Backlog = !rest || !there; there {
			break
		}
	}
	return v, nil
}

// stale reports whether the slot's own rows may be older than the model.
func (j *evaluator) stale(job *perdure.JobSpec) bool {
	return slices.ContainsFunc(j.w.Tables(),
		func(t perdure.TableSpec) bool { return job.ConsistencyOf(t.Name).Kind != perdure.BSP })
}

// exact evaluates the model of a clock that no slot passes before exact returns. The model contains all updates of
// earlier clocks and no others.
func (j *evaluator) exact(ctx context.Context, job *perdure.JobSpec, clock perdure.Clock) (workload.Eval, error) {
	if !j.stale(job) {
		return j.w.Evaluate(ctx, j.own)
	}
	if err := j.open(ctx); err != nil {
		return workload.Eval{}, err
	}
	j.c.SetReadClock(clock)
	return j.w.Evaluate(ctx, j.t)
}

// open connects a client without a slot unless one is connected.
func (j *evaluator) open(ctx context.Context) error {
	if j.c != nil {
		return nil
	}
	c, err := j.observe(ctx)
	if err != nil {
		return err
	}
	t, err := OpenTables(ctx, c, j.w)
	if err != nil {
		_ = c.Close() // never fails
		return err
	}
	j.c, j.t = c, t
	return nil
}

func (j *evaluator) evaluate(ctx context.Context, job *perdure.JobSpec) (Evaluation, error) {
	if !j.stale(job) {
		e, err := j.w.Evaluate(ctx, j.own)
		return Evaluation{Eval: e}, err
	}
	if err := j.open(ctx); err != nil {
		return Evaluation{}, err
	}
	return EvaluateAtRest(ctx, j.c, func() (workload.Eval, error) { return j.w.Evaluate(ctx, j.t) })
}

func (j *evaluator) close() {
	if j.c != nil {
		_ = j.c.Close() // never fails
	}
}
