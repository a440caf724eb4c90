package localrun

import (
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/terminal"
	"github.com/perdure/perdure/internal/run/workload"
)

// jobStats collects the statistics of a job in the run's parent. It has the newest report of every process, including
// dead ones, and the reports of the user's programs. It produces the live display (State), the rows of series.csv
// (Point) and the run's summary (Summary).
//
// Reports may arrive late, twice, or from processes that have ended. Workers' counters are summed over all processes
// that ever worked, with the newest report of each. Once the job was complete, the number of updates in the model is
// that of the latest moment at which it was complete: a shard whose chain is changing reports fewer later.
//
// Callers pass the time. A jobStats is safe for concurrent use.
type jobStats struct {
	run settings.Run

	mu        sync.Mutex // guards the fields below
	began     time.Time
	progress  wire.Progress           // as last reported; its places stay set once they have been reported
	complete  bool                    // the job was complete at some time
	updatesIn int64                   // at that time; later a shard's chain may be changing and report nothing
	workers   map[string]workerReport // by process
	occupant  map[int]string          // the latest process of each slot
	train     trainMeasures
	test      testMeasures
	goal      goalEvaluation
	last      sample
	clocksAt  time.Time           // when the last row of clocks.csv was due
	peak      map[wire.Role]int64 // resident bytes at the highest sample
	lastEvent string
	untrained map[perdure.Slot]string // data that slots have not trained on
	speed     protocol.Rate
	mbRate    float64
}

// workerReport is the newest report of one worker process.
type workerReport struct {
	slot int
	perdure.WorkerCounters
}

// trainMeasures are the last reported measures on the training data.
type trainMeasures struct{ loss, rmse *float64 }

// testMeasures are the last reported measures on the test set.
type testMeasures struct {
	loss, accuracy, rmse *float64
	backlog              bool // the rows of the last evaluation lacked some updates
	fresh                bool // reported since the last point of the series
}

// seriesEvery is the time between two points of the series unless a test result must be written.
const seriesEvery = 500 * time.Millisecond

// newStats returns an empty jobStats for a run.
func newStats(run *settings.Run, now time.Time) *jobStats {
	return &jobStats{
		run: *run, began: now, last: sample{at: now},
		workers: map[string]workerReport{}, occupant: map[int]string{}, peak: map[wire.Role]int64{},
		untrained: map[perdure.Slot]string{},
	}
}

// RecordEvent records the latest event of the job.
func (t *jobStats) RecordEvent(text string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.lastEvent = text
}

// RecordReport records a worker's report at a time since the first clock started. It returns whether the report was an
// evaluation, which is written as a point of the series.
func (t *jobStats) RecordReport(r wire.Report, since time.Duration) (evaluated bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.Untrained != nil {
		t.untrained[r.Slot] = r.Untrained.Describe(r.Slot)
	}
	if r.TrainLoss != nil {
		t.train.loss = r.TrainLoss
	}
	if r.TrainRMSE != nil {
		t.train.rmse = r.TrainRMSE
	}
	if r.TestAccuracy == nil && r.TestLoss == nil && r.TestRMSE == nil {
		return false
	}
	t.test = testMeasures{loss: r.TestLoss, accuracy: r.TestAccuracy, rmse: r.TestRMSE, backlog: r.Backlog, fresh: true}
	e := workload.Eval{
		Loss: rundir.ValueOrNaN(r.TestLoss), Accuracy: rundir.ValueOrNaN(r.TestAccuracy),
		RMSE: rundir.ValueOrNaN(r.TestRMSE),
	}
	t.goal.record(t.run.Until, e, goalEvaluation{at: since, clock: r.Clock, generation: r.Generation})
	return true
}

// RecordEvaluation records an evaluation by the run's parent, of the rows at a time since the first clock started. It
// returns the evaluation's point of the series, which has no other values.
func (t *jobStats) RecordEvaluation(
	e workload.Eval,
	backlog bool,
	since time.Duration,
	clock perdure.Clock,
) rundir.SeriesPoint {
	p := rundir.SeriesPoint{
		Seconds: since.Seconds(), Clock: clock, Backlog: &backlog,
		TestLoss: rundir.FiniteOrNil(e.Loss), TestAccuracy: rundir.FiniteOrNil(e.Accuracy),
		TestRMSE: rundir.FiniteOrNil(e.RMSE),
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.test.loss, t.test.accuracy, t.test.rmse = p.TestLoss, p.TestAccuracy, p.TestRMSE
	t.goal.record(t.run.Until, e, goalEvaluation{at: since, clock: clock, generation: t.progress.Generation})
	return p
}

// RecordFinal records the evaluation of the exported model for the next point of the series.
func (t *jobStats) RecordFinal(e workload.Eval) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.test = testMeasures{
		loss: rundir.FiniteOrNil(e.Loss), accuracy: rundir.FiniteOrNil(e.Accuracy),
		rmse: rundir.FiniteOrNil(e.RMSE), fresh: true,
	}
}

// RecordProgress records the coordinator's progress report. It returns whether a point of the series is due.
func (t *jobStats) RecordProgress(p wire.Progress, now time.Time) (due bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	places := p.Members
	if places == nil {
		places = t.progress.Members
	}
	for _, d := range p.Members {
		if d.Role != wire.RoleWorker {
			continue
		}
		if d.Process != "" {
			t.occupant[d.Index] = d.Process
		}
		// After a death the slot has no process, but the counters of its last one, which must not count twice.
		if process := t.occupant[d.Index]; d.Worker != nil && process != "" {
			t.workers[process] = workerReport{slot: d.Index, WorkerCounters: *d.Worker}
		}
	}
	if p.Generation == t.progress.Generation { // a new coordinator knows the clock only once all workers have reported
		p.Clock = max(p.Clock, t.progress.Clock)
	}
	if t.complete = t.complete || p.Complete; p.Complete || !t.complete {
		t.updatesIn = p.UpdatesApplied
	}
	t.progress = p
	t.progress.Members = places
	if p.Clock > 0 {
		t.speed.Note(now.Sub(t.began).Seconds(), p.Clock)
	}
	return now.Sub(t.last.at) >= seriesEvery
}

// ClocksDue returns whether a row of clocks.csv is due, and counts it as written. Evaluations, which postpone the
// points of the series, do not postpone these rows.
func (t *jobStats) ClocksDue(now time.Time) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.clocksAt) < seriesEvery {
		return false
	}
	t.clocksAt = now
	return true
}

// Progress returns the coordinator's last progress report, completed from earlier ones.
func (t *jobStats) Progress() wire.Progress {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress
}

// LastEvent returns the text of the latest event.
func (t *jobStats) LastEvent() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.lastEvent
}

// State returns the job's current state for the display; since is the time since the first clock started.
func (t *jobStats) State(since time.Duration, now time.Time) terminal.State {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := terminal.State{
		Since: since, Progress: t.progress, Clocks: t.run.Job.Clocks, LastEvent: t.lastEvent,
		TrainLoss: t.train.loss, TrainRMSE: t.train.rmse, TestAccuracy: t.test.accuracy, TestRMSE: t.test.rmse,
		ClocksPerSecond: t.clocksPerSecond(now), MBPerSecond: t.mbRate,
	}
	for _, w := range t.workers {
		n.OutageClocks += w.OutageClocks
	}
	return n
}

// clocksPerSecond returns the job's speed, or nil while it is unknown. The caller must hold t.mu.
func (t *jobStats) clocksPerSecond(now time.Time) *float64 {
	v, known := t.speed.PerSecond(now.Sub(t.began).Seconds())
	if !known {
		return nil
	}
	return &v
}

// totals sums the counters of all workers, living and dead. The caller must hold t.mu.
func (t *jobStats) totals() (w perdure.WorkerCounters) {
	w.ClockDifferential, w.ReadLag, w.MissingUpdates = map[int64]int64{}, map[int64]int64{}, map[int64]int64{}
	for _, c := range t.workers {
		w.UpdatesSent += c.UpdatesSent
		w.BytesPushed += c.BytesPushed
		w.BytesPulled += c.BytesPulled
		w.Samples += c.Samples
		w.BeyondBound += c.BeyondBound
		w.OutageClocks += c.OutageClocks
		w.StaleRows += c.StaleRows
		w.OutageNs += c.OutageNs
		w.StatesLost += c.StatesLost
		w.StatesOlder = max(w.StatesOlder, c.StatesOlder)
		w.QueuedBytes = max(w.QueuedBytes, c.QueuedBytes)
		addCounts(w.ClockDifferential, c.ClockDifferential)
		addCounts(w.ReadLag, c.ReadLag)
		addCounts(w.MissingUpdates, c.MissingUpdates)
	}
	return w
}

func addCounts(to, h map[int64]int64) {
	for k, n := range h {
		to[k] += n
	}
}
