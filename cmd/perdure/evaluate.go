package main

import (
	"context"
	"slices"

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
