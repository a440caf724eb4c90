package sim

import (
	"context"
	"errors"
	"math/rand/v2"

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

// clocksUntil returns the clock that follows those of a slot's next update. Slots that may skip clocks skip those
// before an early end, and some others.
func (h *History) clocksUntil(w *worker.Client, clock perdure.Clock) perdure.Clock {
	end := w.End()
	rng := rand.New(rand.NewPCG(h.job.Seed^uint64(clock), uint64(w.Slot())))
	switch {
	case !h.Skips || end <= clock:
		return clock + 1
	case h.Goal > 0 && end < h.job.Clocks:
		return end
	case h.Goal > 0 || rng.IntN(4) > 0: // the end may become an earlier clock
		return clock + 1
	}
	return min(end, clock+2+perdure.Clock(rng.IntN(3)))
}
