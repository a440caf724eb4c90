package localrun

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/internal/run/workload"
)

// finalModel is the model that a job has made.
type finalModel struct {
	Clock    perdure.Clock
	SHA256   string
	Eval     workload.Eval
	Findings []string // remarks of the workload about the model
}

// finalValues holds the values that are known only when a run has ended.
type finalValues struct {
	Since    time.Duration // the first clock began
	Used     roleUsage
	LogBytes *int64 // of the run's own log; nil: it has none
	Failures []supervisor.Failure
	Model    *finalModel // nil: unknown
}

// Summary returns the summary of the run. Later reports do not change it.
func (t *jobStats) Summary(end finalValues) rundir.Summary {
	t.mu.Lock()
	defer t.mu.Unlock()
	job := &t.run.Job
	w := t.totals()
	// Each slot has one update per clock and shard. These are copies, since the coordinator may report until the
	// processes have ended.
	applied, redone := t.updatesIn, t.progress.ClocksRedone
	lost := t.progress.UpdatesExpected - applied
	if job.SuspendMs > 0 {
		lost = max(0, lost) // some shards may have more updates of a slot that was suspended
	}
	sum := rundir.Summary{
		Workload: job.Workload, Data: t.data(), Workers: job.Slots, Servers: job.Servers, Shards: job.Shards,
		Consistency: job.Consistency, TableConsistency: job.TableConsistency, Recovery: job.Recovery,
		OnOutage: job.OnOutage, OutageRows: job.OutageRows, StaleScale: cmp.Or(job.StaleScale, perdure.ScaleNone),
		Seed: job.Seed, Clocks: t.progress.End, WallSeconds: end.Since.Seconds(), TimeSplit: t.timeSplit(),
		TrainLoss: t.train.loss, TrainRMSE: t.train.rmse,
		UpdatesSent: &w.UpdatesSent, UpdatesApplied: &applied, UpdatesLost: &lost,
		ClocksRedone: &redone, BytesPushed: &w.BytesPushed, BytesPulled: &w.BytesPulled, LogBytes: end.LogBytes,
		ClockDifferential: texts(w.ClockDifferential), ReadLag: texts(w.ReadLag),
		MissingUpdates: texts(w.MissingUpdates),
		MissingBound:   t.missingBound(), Usage: t.roleUsage(end.Used), Outage: t.outages(&w),
		Saving: t.progress.Saving,
	}
	if w.StatesLost > 0 {
		sum.OlderStates = &rundir.OlderStates{StatesLost: w.StatesLost, StatesOlder: w.StatesOlder}
	}
	if strings.Contains(job.Models(), string(perdure.VAP)+":") {
		sum.BeyondBound = &w.BeyondBound
	}
	if m := end.Model; m != nil {
		sum.TestLoss, sum.TestAccuracy = rundir.FiniteOrNil(m.Eval.Loss), rundir.FiniteOrNil(m.Eval.Accuracy)
		sum.TestRMSE, sum.ModelSHA256 = rundir.FiniteOrNil(m.Eval.RMSE), &m.SHA256
		sum.Goal = t.goal.summary(t.run.Until, m.Eval, goalEvaluation{at: end.Since, clock: m.Clock})
		sum.Findings = slices.Clone(m.Findings)
		if line := missedGoalLine(t.run.Until, m.Eval); line != "" {
			sum.Findings = append(sum.Findings, line)
		}
	}
	for _, slot := range slices.Sorted(maps.Keys(t.untrained)) {
		sum.Findings = append(sum.Findings, t.untrained[slot])
	}
	for _, f := range end.Failures {
		sum.Failures = append(sum.Failures, failure(&f))
	}
	return sum
}

// SoFar returns the summary of a run that has not ended. The usage is that of the last point.
func (t *jobStats) SoFar(now finalValues) rundir.Summary {
	t.mu.Lock()
	now.Used = t.last.usage
	progress, complete := t.progress, t.complete
	t.mu.Unlock()
	s := t.Summary(now)
	if !complete { // most updates are still due
		s.Clocks, s.UpdatesLost, s.UpdatesApplied = progress.Clock, &progress.UpdatesLost, &progress.UpdatesApplied
	}
	return s.Encodable()
}

// data returns the name of the training data.
func (t *jobStats) data() string {
	switch t.run.Job.Workload {
	case settings.OwnWorkload:
		return "own"
	case workload.QuadraticName:
		return "none"
	}
	return t.run.Params.DataName()
}

// missingBound returns the largest number of updates that a read may lack, for the largest number of slots. It returns
// nil if the number is unbounded. The caller must hold t.mu.
func (t *jobStats) missingBound() *int64 {
	most := t.run.Job
	for _, d := range t.progress.Members {
		if d.Role == wire.RoleWorker {
			most.Slots = max(most.Slots, d.Index+1)
		}
	}
	if n, bounded := most.MissingBound(); bounded {
		return &n
	}
	return nil
}

// failure converts a failure to its form in a summary.
func failure(f *supervisor.Failure) rundir.Failure {
	ms := func(d *time.Duration) *float64 {
		if d == nil {
			return nil
		}
		return new(float64(d.Microseconds()) / 1000)
	}
	return rundir.Failure{
		Kind: f.Kind, Target: f.Target, AtSeconds: f.At.Seconds(), AtClock: perdure.Clock(f.AtClock),
		DetectedAfterMs: ms(f.Detected), ServingAgainAfterMs: ms(f.Serving),
		UpdatesLost: &f.UpdatesLost, ClocksRedone: &f.ClocksRedone,
	}
}

// texts converts a histogram's numbers to JSON keys.
func texts(h map[int64]int64) map[string]int64 {
	out := make(map[string]int64, len(h))
	for k, n := range h {
		out[strconv.FormatInt(k, 10)] = n
	}
	return out
}
