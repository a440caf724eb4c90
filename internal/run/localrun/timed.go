package localrun

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// A run does two things by wall time rather than by clock: regular evaluations, and an end after a given duration. The
// run's parent does both, so that they continue when workers die.

// startTimers starts the timed actions and returns a function that stops them.
func (r *Run) startTimers(ctx context.Context) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	if r.s.EvalMs > 0 {
		wg.Go(func() { r.evaluateByTime(ctx) })
	}
	if r.s.Until.Metric == settings.OverTime {
		wg.Go(func() { r.endAfterTime(ctx) })
	}
	return func() {
		cancel()
		wg.Wait()
	}
}

// endAfterTime requests the job's end when the time is over. It repeats the request, since the process that receives it
// may be dead.
func (r *Run) endAfterTime(ctx context.Context) {
	limit := time.Duration(r.s.Until.Value * float64(time.Second))
	for {
		left := limit - r.job.Since()
		if left <= 0 {
			r.job.EndSoon()
			left = time.Second
		}
		if !r.sleep(ctx, left) {
			return
		}
	}
}

// sleep returns false if the job is complete or ctx ends before the time is over.
func (r *Run) sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-r.complete:
		return false
	case <-time.After(d):
		return true
	}
}

// evaluateByTime evaluates the servers' newest rows at multiples of EvalMs since the first clock started. If an
// evaluation takes longer, or waits for a shard without a server, the evaluations due in that time are skipped. The
// series then has a gap, and no row is reported for a time at which it could not be read.
func (r *Run) evaluateByTime(ctx context.Context) {
	every := time.Duration(r.s.EvalMs) * time.Millisecond
	o := &observer{r: r}
	defer o.close()
	for {
		since := r.job.Since()
		if !r.sleep(ctx, every-since%every) {
			return
		}
		if r.job.Since() < every {
			continue // the first clock has just started
		}
		if e, ok := o.evaluate(ctx); ok {
			r.recordEvaluation(e, o.t.at, o.t.clock)
		}
	}
}

// recordEvaluation records an evaluation of the rows at a time after the first clock started.
func (r *Run) recordEvaluation(e role.Evaluation, at time.Duration, clock perdure.Clock) {
	r.checkRecord(r.dir.Point(r.stats.RecordEvaluation(e.Eval, e.Backlog, at, clock)))
	if r.s.Until.Reached(e.Eval) {
		r.job.EndSoon()
	}
}

// observer evaluates a job's model as an observer.
type observer struct {
	r *Run
	w workload.Workload
	c *worker.Client // nil: not connected
	t *timedTables
}

// timedTables records when rows were last read.
type timedTables struct {
	*role.Tables
	r     *Run
	at    time.Duration // since the first clock started
	clock perdure.Clock // the job's clock at that time
}

func (t *timedTables) Get(ctx context.Context, table string, first perdure.RowID, dst []float32) error {
	defer t.note()
	return t.Tables.Get(ctx, table, first, dst)
}

func (t *timedTables) GetRows(ctx context.Context, table string, rows []perdure.RowID, dst []float32) error {
	defer t.note()
	return t.Tables.GetRows(ctx, table, rows, dst)
}

func (t *timedTables) note() { t.at, t.clock = t.r.job.Since(), t.r.Clock() }

// evaluate evaluates the newest rows. ok is false if rows cannot be read now, or if the job rolled back in between.
func (o *observer) evaluate(ctx context.Context) (e role.Evaluation, ok bool) {
	err := o.open(ctx)
	if err == nil {
		generation := o.c.Generation()
		e, err = role.EvaluateAtRest(ctx, o.c, func() (workload.Eval, error) { return o.w.Evaluate(ctx, o.t) })
		ok = err == nil && o.c.Generation() == generation
	}
	if err != nil {
		o.close() // reconnect next time
	}
	return e, ok
}

func (o *observer) open(ctx context.Context) (err error) {
	if o.c != nil {
		return nil
	}
	if o.w == nil {
		if o.w, err = workload.New(o.r.s.Job.Workload, o.r.s.WorkParams()); err != nil {
			return err
		}
	}
	network, err := o.r.s.Network(wire.RoleObserver, 0, o.r.ring)
	if err != nil {
		return err
	}
	if o.c, err = locate.Observe(hooks.NewContext(ctx, hooks.Worker{Network: network}), worker.Config{
		Coordinator: o.r.coordinatorAddr, Secret: o.r.secrets.Job, Log: slog.New(slog.DiscardHandler),
	}); err != nil {
		o.c = nil
		return err
	}
	t, err := role.OpenTables(ctx, o.c, o.w)
	o.t = &timedTables{Tables: t, r: o.r}
	return err
}

func (o *observer) close() {
	if o.c != nil {
		_ = o.c.Close() // never fails
	}
	o.c = nil
}
