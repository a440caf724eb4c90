package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/run/localrun"
	"github.com/perdure/perdure/internal/run/locate"
	"github.com/perdure/perdure/internal/run/role"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
	"github.com/perdure/perdure/internal/run/workload"
	"github.com/perdure/perdure/worker"
)

// recoveryJob is a training job whose servers and coordinator are separate processes. Its workers run in this process,
// which records the ends of their clocks. An observer reads a row of every shard again and again.
type recoveryJob struct {
	*localrun.Run
	api     *control.Client
	watch   *eventView
	ballast perdure.TableSpec // the larger part of the model; Rows 0: none
	gets    lapRecorder       // by shard
	clocks  lapRecorder       // by slot
	rawDir  string            // for plain copies in comparison; "": none
	running sync.WaitGroup
	cancel  context.CancelCauseFunc
}

// lapRecorder records when repeated operations began and ended. It is safe for concurrent use.
type lapRecorder struct {
	mu   sync.Mutex // guards laps
	laps []lap
}

// lap is one execution of the operation with that number.
type lap struct {
	number   int
	from, to time.Time
}

func (t *lapRecorder) add(number int, from, to time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.laps = append(t.laps, lap{number, from, to})
}

// takeLaps returns the recorded laps and clears them.
func (t *lapRecorder) takeLaps() []lap {
	t.mu.Lock()
	defer t.mu.Unlock()
	laps := t.laps
	t.laps = make([]lap, 0, len(laps))
	return laps
}

// longest returns the longest lap that ended after a time, among those that count. Only the part of a lap after that
// time counts.
func longest(laps []lap, after time.Time, counts func(number int) bool) (most time.Duration) {
	for _, l := range laps {
		if l.to.After(after) && counts(l.number) {
			from := l.from
			if from.Before(after) {
				from = after
			}
			most = max(most, l.to.Sub(from))
		}
	}
	return most
}

// perSecond returns the rate of laps that ended between two times.
func perSecond(laps []lap, from, to time.Time) float64 {
	n := 0
	for _, l := range laps {
		if l.to.After(from) && !l.to.After(to) {
			n++
		}
	}
	return float64(n) / to.Sub(from).Seconds()
}

// eventView stores a job's events.
type eventView struct {
	terminal.NopView
	mu     sync.Mutex // guards events
	events []wire.Event
}

// Event implements terminal.View.
func (v *eventView) Event(_ *terminal.State, e wire.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.events = append(v.events, e)
}

// since returns the events from a time on.
func (v *eventView) since(at time.Time) (sent []wire.Event) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, e := range v.events {
		if e.UnixNs >= at.UnixNano() {
			sent = append(sent, e)
		}
	}
	return sent
}

// openRecoveryJob starts a job without workers. If the job ends by itself, it calls cancel with the reason.
func openRecoveryJob(
	ctx context.Context, cancel context.CancelCauseFunc, s settings.Run, out string,
) (j *recoveryJob, err error) {
	watch := &eventView{}
	r, err := localrun.Start(ctx, localrun.Options{Settings: s, Folder: out, View: watch})
	if err != nil {
		return nil, err
	}
	j = &recoveryJob{Run: r, api: r.Control(), watch: watch, cancel: cancel}
	j.running.Go(func() { cancel(r.Job().Run()) })
	return j, nil
}

// work trains and reads until ctx ends. Any error cancels the job.
func (j *recoveryJob) work(ctx context.Context, mb int) {
	j.ballast = ballastTable(mb)
	for slot := range j.Settings().Job.Slots {
		j.start(func() error { return j.train(ctx, perdure.Slot(slot)) })
	}
	j.start(func() error { return j.probe(ctx) })
}

// start runs f until the job ends.
func (j *recoveryJob) start(f func() error) {
	j.running.Go(func() {
		if err := f(); err != nil {
			j.cancel(err)
		}
	})
}

// close ends the job gracefully, so that its processes end by themselves. This also ends ctx.
func (j *recoveryJob) close() error {
	j.Job().End(localrun.ErrExported)
	j.running.Wait()
	return j.Run.Close()
}

// The larger part of a model: rows to which each clock pushes a few deltas.
const (
	ballastDim  = 1024
	ballastRows = 16 // rows pushed per clock
)

func ballastTable(mb int) perdure.TableSpec {
	return perdure.TableSpec{
		Name: "ballast", Rows: int64(mb) * 1e6 / 4 / ballastDim, Dim: ballastDim,
		Rule: perdure.Rule{Kind: perdure.RuleAdd},
	}
}

// train works in a slot until ctx ends, and continues after rollbacks.
func (j *recoveryJob) train(ctx context.Context, slot perdure.Slot) error {
	c, err := worker.Dial(ctx, worker.Config{
		Coordinator: j.Coordinator(), Secret: j.Secrets().Job, Slot: slot.Exactly(), Process: locate.ProcessName(),
		JoinTimeout: patience,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	w, err := workload.New(j.Settings().Job.Workload, j.Settings().Params)
	if err != nil {
		return err
	}
	tables, err := role.OpenTables(ctx, c, w)
	if err != nil {
		return err
	}
	var ballast *worker.Table
	if j.ballast.Rows > 0 {
		if ballast, err = c.Table(ctx, j.ballast); err != nil {
			return err
		}
	}
	if err := c.AwaitSlots(ctx); err != nil && !errors.Is(err, perdure.ErrRolledBack) {
		return err
	}
	last := time.Now()
	for clock := c.Now(); ; {
		_, err := w.Step(ctx, tables, workload.Share{Rank: int(slot), Of: j.Settings().Job.Slots}, clock)
		if err == nil && ballast != nil {
			n := min(ballastRows, j.ballast.Rows)
			first := int64(clock) * n % (j.ballast.Rows - n + 1)
			err = ballast.IncRun(perdure.RowID(first), pushDelta(int(n)*ballastDim))
		}
		if err != nil && !errors.Is(err, perdure.ErrRolledBack) {
			return err
		}
		if clock, err = c.Clock(ctx); err != nil {
			return err
		}
		now := time.Now()
		j.clocks.add(int(slot), last, now)
		last = now
	}
}

// probe reads a row of every shard in turn until ctx ends.
func (j *recoveryJob) probe(ctx context.Context) error {
	w, err := workload.New(j.Settings().Job.Workload, j.Settings().Params)
	if err != nil {
		return err
	}
	c, err := locate.Observe(ctx, worker.Config{
		Coordinator: j.Coordinator(), Secret: j.Secrets().Job, JoinTimeout: patience,
	})
	if err != nil {
		return err
	}
	defer c.Close()
	t, err := c.Table(ctx, w.Tables()[0])
	if err != nil {
		return err
	}
	spec := t.Spec()
	row := make([]float32, spec.Dim)
	for {
		for s := range j.Settings().Job.Shards {
			first, n := placement.Range(&spec, j.Settings().Job.Shards, perdure.ShardID(s))
			if n == 0 {
				continue
			}
			t.Forget()
			from := time.Now()
			if err := t.Get(ctx, first, row); err != nil {
				return err
			}
			j.gets.add(s, from, time.Now())
		}
	}
}

const (
	// patience limits how long a job may take to start and to recover.
	patience     = 3 * time.Minute
	pollInterval = 10 * time.Millisecond
)

// await polls the job until ok returns true.
func (j *recoveryJob) await(
	ctx context.Context, what string, ok func(*control.Status, *protocol.View) bool,
) (v protocol.View, s control.Status, err error) {
	tick := time.NewTicker(pollInterval)
	defer tick.Stop()
	for start := time.Now(); ; {
		select {
		case <-ctx.Done():
			return v, s, context.Cause(ctx)
		case <-tick.C:
		}
		if s, v, err = locate.QueryState(ctx, j.api); err == nil && ok(&s, &v) {
			return v, s, nil
		}
		if time.Since(start) > patience {
			return v, s, fmt.Errorf("bench: %s under %s: the job has not recovered after %v; last event: %s", what,
				j.Settings().Job.Recovery, patience, j.LastEvent())
		}
	}
}

// isRecovered reports whether the job has recovered from all failures.
func isRecovered(s *control.Status, v *protocol.View) bool {
	for _, p := range s.Processes {
		if p.State != control.ProcessLive || p.Draining {
			return false
		}
	}
	return s.State == control.StateTraining && isFullyReplicated(v, recovery.Of(s.Recovery).Traits().Copies)
}

// isFullyReplicated reports whether every shard has its full number of replicas, and no server is joining its chain.
func isFullyReplicated(v *protocol.View, copies int) bool {
	return len(v.Shards) > 0 && !slices.ContainsFunc(v.Shards, func(s protocol.ShardView) bool {
		return s.Replicas() != max(1, copies) || s.Joining != nil
	})
}
