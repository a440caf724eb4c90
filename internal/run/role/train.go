package role

import (
	"context"
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// lastClock is how long a worker that must leave may take to finish its clock. If other workers have left before, it
// cannot finish.
const lastClock = 500 * time.Millisecond

// train is the main loop of a worker process. It works from its slot's clock to the job's end, through rollbacks. When
// ctx ends (on SIGTERM), it finishes its clock if possible and leaves.
func train(
	ctx context.Context, c *worker.Client, w workload.Workload, s settings.Run, p *pacer,
	observe func(context.Context) (*worker.Client, error),
) error {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastClock, cancel) })()
	t, err := OpenTables(run, c, w)
	if err != nil {
		return err
	}
	tr := &trainer{c: c, w: w, t: t, s: s, p: p, evaluator: &evaluator{w: w, own: t, observe: observe}}
	defer tr.evaluator.close()
	if c.Now() == 0 {
		if err := c.AwaitSlots(run); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			return err
		}
	}
	for clock := c.Now(); ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if end := c.End(); end > 0 && clock >= end {
			err := c.SettleEnd(run, tr.final)
			if end := c.End(); err == nil && (end == 0 || end > clock) {
				continue // the model missed the goal
			}
			if err == nil {
				err = tr.finish(ctx)
			}
			if !errors.Is(err, perdure.ErrRolledBack) {
				return err
			}
		} else if err := tr.step(run, clock); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			return err
		}
		if clock, err = c.Clock(run); err != nil {
			return err
		}
	}
}

// trainer is the training loop of one worker.
type trainer struct {
	c            *worker.Client
	w            workload.Workload
	t            *Tables
	s            settings.Run
	p            *pacer
	evaluator    *evaluator
	lossReported time.Time     // when the last training loss was reported
	goalClock    perdure.Clock // its model alone was seen to reach the goal; 0: none was
}

// finish waits for the other workers. A SIGTERM does not make the worker leave early while the job may roll back: only
// the end of the job or of ctx does.
func (tr *trainer) finish(ctx context.Context) error { return tr.c.Finish(ctx) }

// step does one clock. It may evaluate the model first, and requests the job's end when the goal is reached.
func (tr *trainer) step(ctx context.Context, clock perdure.Clock) error {
	if tr.c.Slot() == 0 && tr.s.EvalEvery > 0 && clock > 0 && clock%tr.s.EvalEvery == 0 {
		reached, err := tr.evaluate(ctx, clock)
		if err != nil {
			return err
		}
		if reached {
			tr.p.goalReached.Store(true)
		}
	}
	if end := tr.c.End(); tr.p.goalReached.Swap(false) && clock > 0 && (end == 0 || end == tr.s.Job.Clocks) {
		if err := tr.end(ctx, clock); err != nil {
			return err
		}
		if end := tr.c.End(); end > 0 && clock >= end {
			return nil
		}
		// Either other workers are ahead, and all stop at the clock of the foremost one, or the model at this clock
		// misses the goal.
	}
	start := time.Now()
	tr.t.waited = 0
	rank, of := tr.c.Share()
	m, err := tr.w.Step(ctx, tr.t, workload.Share{Rank: rank, Of: of}, clock)
	if err != nil {
		return err
	}
	if err := tr.t.weigh(m.Samples); err != nil {
		return err
	}
	tr.c.AddSamples(m.Samples)
	if now := time.Now(); now.Sub(tr.lossReported) > 20*time.Millisecond {
		tr.lossReported = now
		tr.c.Report(worker.Report{
			Clock: clock, TrainLoss: rundir.FiniteOrNil(m.TrainLoss),
			TrainRMSE: rundir.FiniteOrNil(m.TrainRMSE),
		})
	}
	return tr.p.wait(ctx, time.Since(start)-tr.t.waited)
}

// end ends the job if the resulting model reaches the goal. With two-step clocks the job ends at this clock, whose
// model is already known. Otherwise the model is known once every slot has stopped, and the end is tentative until
// then.
func (tr *trainer) end(ctx context.Context, clock perdure.Clock) error {
	switch {
	case tr.s.Until.Metric == settings.OverTime || tr.goalClock == clock:
		return tr.c.EndJob(ctx)
	case !tr.s.Job.TwoStep(tr.w.Tables()):
		return tr.c.ProposeEnd(ctx)
	}
	reached, err := tr.final(ctx)
	if err != nil || !reached {
		return err
	}
	return tr.c.EndJob(ctx)
}

// final evaluates the model of the current clock, at which the job may end, and returns whether it reaches the goal.
func (tr *trainer) final(ctx context.Context) (reached bool, err error) {
	clock, generation := tr.c.Now(), tr.c.Generation()
	same, end := tr.c.ContextUntilRollback(ctx)
	defer end()
	e, err := tr.evaluator.exact(same, &tr.s.Job, clock)
	switch {
	case tr.c.Generation() != generation:
		return false, perdure.ErrRolledBack
	case err != nil:
		return false, err
	case tr.s.Until.Reached(e):
		return true, nil
	}
	tr.report(clock, Evaluation{Eval: e})
	return false, nil
}

// evaluate reports an evaluation of the model, and returns whether the goal is reached.
func (tr *trainer) evaluate(ctx context.Context, clock perdure.Clock) (reached bool, err error) {
	generation := tr.c.Generation()
	whole, end := tr.c.ContextUntilOutage(ctx)
	defer end()
	e, err := tr.evaluator.evaluate(whole, &tr.s.Job)
	switch {
	case err != nil && whole.Err() != nil && ctx.Err() == nil:
		return false, nil // in an outage the newest rows are not available, and training continues
	case err != nil:
		return false, err
	case tr.c.Generation() != generation:
		return false, perdure.ErrRolledBack // the rows may be from before and after the rollback
	}
	tr.report(clock, e)
	reached = tr.s.Until.Reached(e.Eval)
	if reached && !tr.evaluator.stale(&tr.s.Job) {
		tr.goalClock = clock
	}
	return reached, nil
}

// report sends an evaluation to the run's parent.
func (tr *trainer) report(clock perdure.Clock, e Evaluation) {
	tr.c.Report(worker.Report{
		Clock: clock, TestLoss: rundir.FiniteOrNil(e.Loss), TestAccuracy: rundir.FiniteOrNil(e.Accuracy),
		TestRMSE: rundir.FiniteOrNil(e.RMSE), Backlog: e.Backlog,
	})
}
