package main

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/worker"
	"github.com/perdure/perdure/workload"
)

// clientTables gives a workload its tables through a client.
type clientTables struct {
	tables map[string]*worker.Table
	waited time.Duration // in Get, since it was set to 0
	list   []perdure.RowID
}

// openTables creates or attaches to the workload's tables.
func openTables(ctx context.Context, c *worker.Client, w workload.Workload) (*clientTables, error) {
	t := &clientTables{tables: map[string]*worker.Table{}}
	for _, spec := range w.Tables() {
		table, err := c.Table(ctx, spec)
		if err != nil {
			return nil, err
		}
		t.tables[spec.Name] = table
	}
	return t, nil
}

func (t *clientTables) Get(ctx context.Context, table string, first perdure.RowID, dst []float32) error {
	begin := time.Now()
	defer func() { t.waited += time.Since(begin) }()
	to := t.tables[table]
	if spec := to.Spec(); spec.Sparse {
		return to.GetRows(ctx, t.rows(first, len(dst)/spec.Dim), dst)
	}
	return to.GetRun(ctx, first, dst)
}

func (t *clientTables) Inc(_ context.Context, table string, first perdure.RowID, delta []float32) error {
	to := t.tables[table]
	if spec := to.Spec(); spec.Sparse {
		return to.IncRows(t.rows(first, len(delta)/spec.Dim), delta)
	}
	return to.IncRun(first, delta)
}

func (t *clientTables) GetRows(ctx context.Context, table string, rows []perdure.RowID, dst []float32) error {
	begin := time.Now()
	defer func() { t.waited += time.Since(begin) }()
	return t.tables[table].GetRows(ctx, rows, dst)
}

func (t *clientTables) IncRows(_ context.Context, table string, rows []perdure.RowID, delta []float32) error {
	return t.tables[table].IncRows(rows, delta)
}

// rows names n rows from the first on. The list is valid until the next call.
func (t *clientTables) rows(first perdure.RowID, n int) []perdure.RowID {
	t.list = t.list[:0]
	for i := range n {
		t.list = append(t.list, first+perdure.RowID(i))
	}
	return t.list
}

// lastClock is how long a worker that must leave may still take to finish its
// clock. Others may have left before, and then it cannot.
const lastClock = 500 * time.Millisecond

// train is what a worker process does: it works from its slot's clock to the
// job's end, through roll-backs. When ctx ends (a SIGTERM) it finishes its
// clock, if it can, and leaves.
func train(ctx context.Context, c *worker.Client, w workload.Workload, s settings.Run, p *pacer, observe func(context.Context) (*worker.Client, error)) error {
	run, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(lastClock, cancel) })()
	t, err := openTables(run, c, w)
	if err != nil {
		return err
	}
	tr := &trainer{c: c, w: w, t: t, s: s, p: p, judge: &evaluator{w: w, own: t, observe: observe}}
	defer tr.judge.close()
	if c.Now() == 0 {
		if err := c.AwaitSlots(run); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			return err
		}
	}
	for clock := c.Now(); ; {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		end := c.End()
		if end > 0 && clock >= end {
			err := tr.finish(ctx)
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

// trainer is one worker's training.
type trainer struct {
	c     *worker.Client
	w     workload.Workload
	t     *clientTables
	s     settings.Run
	p     *pacer
	judge *evaluator
	lost  time.Time // when the last train loss was reported
}

// finish waits for the others; a SIGTERM meanwhile is no reason to leave early
// as long as the job may roll back, so only the job's end or ctx's ends it.
func (tr *trainer) finish(ctx context.Context) error { return tr.c.Finish(ctx) }

// step does one clock: it may evaluate the model first, and asks for the job's
// end when its goal is reached.
func (tr *trainer) step(ctx context.Context, clock perdure.Clock) error {
	if tr.c.Slot() == 0 && tr.s.EvalEvery > 0 && clock > 0 && clock%tr.s.EvalEvery == 0 {
		reached, err := tr.evaluate(ctx, clock)
		if err != nil {
			return err
		}
		if reached {
			tr.p.enough.Store(true)
		}
	}
	if end := tr.c.End(); tr.p.enough.Swap(false) && clock > 0 && (end == 0 || end == tr.s.Job.Clocks) {
		if err := tr.c.EndJob(ctx); err != nil || clock >= tr.c.End() {
			return err
		}
		// Others are ahead: all stop where the first of them stands.
	}
	begin := time.Now()
	tr.t.waited = 0
	rank, of := tr.c.Share()
	m, err := tr.w.Step(ctx, tr.t, workload.Share{Rank: rank, Of: of}, clock)
	if err != nil {
		return err
	}
	tr.c.AddSamples(m.Samples)
	if now := time.Now(); now.Sub(tr.lost) > 20*time.Millisecond {
		tr.lost = now
		tr.c.Report(wire.Report{Clock: clock, TrainLoss: finite(m.TrainLoss), TrainRMSE: finite(m.TrainRMSE)})
	}
	return tr.p.wait(ctx, time.Since(begin)-tr.t.waited)
}

// evaluate reports how good the model is, and whether it is as good as is wanted.
func (tr *trainer) evaluate(ctx context.Context, clock perdure.Clock) (reached bool, err error) {
	generation := tr.c.Generation()
	whole, end := tr.c.Whole(ctx)
	defer end()
	e, err := tr.judge.evaluate(whole, &tr.s.Job)
	switch {
	case err != nil && whole.Err() != nil && ctx.Err() == nil:
		return false, nil // in an outage nobody has the newest rows; training goes on
	case err != nil:
		return false, err
	case tr.c.Generation() != generation:
		return false, perdure.ErrRolledBack // it may be of either
	}
	tr.c.Report(wire.Report{Clock: clock, TestLoss: finite(e.Loss), TestAccuracy: finite(e.Accuracy), TestRMSE: finite(e.RMSE), Backlog: e.backlog})
	return tr.s.Until.Reached(e.Eval), nil
}

// finite returns nil for what JSON cannot say.
func finite(v float64) *float64 {
	if v != v || v > 1e300 || v < -1e300 {
		return nil
	}
	return &v
}

// pacer is what a worker is told from outside: it makes it slow on purpose, or end
// the job.
type pacer struct {
	least  time.Duration // of each clock's computing, before a fault makes it longer
	enough atomic.Bool   // the goal is reached, the run's parent says

	mu     sync.Mutex // guards what follows
	kind   string
	factor float64
	until  time.Time // zero: to the end
	rng    *rand.Rand
}

func (p *pacer) set(kind string, factor float64, d time.Duration, seed uint64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kind, p.factor, p.until = kind, factor, time.Time{}
	if d > 0 {
		p.until = time.Now().Add(d)
	}
	p.rng = rand.New(rand.NewPCG(seed, 1))
}

// wait makes a clock that computed for so long compute for as long as it should.
func (p *pacer) wait(ctx context.Context, took time.Duration) error {
	left := p.target(took) - took
	if left <= 0 {
		return nil
	}
	select {
	case <-time.After(left):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// target is how long a clock that computed for so long should: the least there
// is, and as many times longer as the fault says.
func (p *pacer) target(took time.Duration) time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	factor := p.factor
	if p.kind == "jitter" {
		factor = 1 + (p.factor-1)*p.rng.Float64()
	}
	if p.kind == "" || !p.until.IsZero() && time.Now().After(p.until) {
		factor = 1
	}
	return time.Duration(max(factor, 1) * float64(max(took, p.least)))
}
