package sim

import (
	"context"
	"errors"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/worker"
)

// requestEnd requests the end of the job. The request is tentative if a model may miss the goal.
func (h *History) requestEnd(ctx context.Context, w *worker.Client) error {
	if h.Misses > 0 && !h.job.TwoStep(nil) {
		return w.ProposeEnd(ctx)
	}
	return w.EndJob(ctx)
}

// waitForEnd waits for the job's end. It returns true if training continues: after a rollback, or from the clock of a
// model that missed the goal.
func (h *History) waitForEnd(ctx context.Context, w *worker.Client, r *reader, missed *perdure.Clock) (bool, error) {
	err := w.SettleEnd(ctx, func(context.Context) (bool, error) { return w.Now()%4 >= h.Misses, nil })
	if err == nil && w.Now() < w.End() {
		*missed = w.Now()
		return true, nil
	}
	if err == nil {
		err = w.Finish(ctx)
	}
	if errors.Is(err, perdure.ErrRolledBack) {
		r.rolledBack()
		_, err = w.Clock(ctx)
		return err == nil, err
	}
	return false, err
}
