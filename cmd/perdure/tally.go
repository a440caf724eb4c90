package main

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/pace"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
	"github.com/perdure/perdure/internal/run/settings"
	"github.com/perdure/perdure/workload"
)

// tally is what a run's parent knows of it: the newest word of every process,
// also of those that have died, and what programs reported.
type tally struct {
	mu          sync.Mutex // guards what follows
	started     time.Time
	progress    wire.Progress
	whole       bool                  // the job was complete once
	updatesIn   int64                 // as of then; later a shard's chain may be changing, and not say
	workers     map[string]workerWord // by process
	trainLoss   *float64
	testLoss    *float64
	testAcc     *float64
	trainRMSE   *float64
	testRMSE    *float64
	backlog     bool // the rows of the last evaluation lacked some updates
	met         met
	evalled     bool // a test result has come since the last point of the series
	last        point
	peak        map[wire.Role]int64 // resident bytes at the highest sample
	lastEvent   string
	recordWaits bool // the run's folder has no room for it
	speed       pace.Rate
	mbRate      float64
}

// workerWord is the newest word of one worker process.
type workerWord struct {
	slot int
	perdure.WorkerCounters
}

// point is what rates are computed from.
type point struct {
	at             time.Time
	samples        int64
	pushed, pulled int64
	spent          spent
	usage          map[wire.Role]supervisor.Usage
}

// seriesEvery is the time between two rows of series.csv, unless there is a
// test result to write.
const seriesEvery = 500 * time.Millisecond

// leastRated is the least time, in seconds, of what is told as a rate of what workers
// count: they say it ten times a second.
const leastRated = 0.4

// clocksPerSecond returns how fast the job is, once that is known. It needs j.mu.
func (t *tally) clocksPerSecond() (v float64, known bool) {
	return t.speed.PerSecond(time.Since(t.started).Seconds())
}

func (t *tally) init() {
	t.started = time.Now()
	t.workers, t.peak = map[string]workerWord{}, map[wire.Role]int64{}
	t.last.at = t.started
}

func (t *tally) clock() perdure.Clock {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.progress.Clock
}

func (j *localJob) onEvent(e wire.Event) {
	j.mu.Lock()
	j.lastEvent = e.Text
	j.mu.Unlock()
	j.keep(j.dir.Event(rundir.Event{
		Seconds: j.job.Since().Seconds(), Clock: e.Clock, Kind: e.Kind, Target: e.Target, Text: e.Text,
		Details: map[string]any{"unix_ns": e.UnixNs, "updates_lost": e.UpdatesLost, "clocks_redone": e.ClocksRedone},
	}))
	j.view.event(j, e)
}

func (j *localJob) onReport(r wire.Report) {
	j.mu.Lock()
	if r.TrainLoss != nil {
		j.trainLoss = r.TrainLoss
	}
	if r.TrainRMSE != nil {
		j.trainRMSE = r.TrainRMSE
	}
	evaluated := r.TestAccuracy != nil || r.TestLoss != nil || r.TestRMSE != nil
	if evaluated {
		j.testLoss, j.testAcc, j.testRMSE, j.backlog, j.evalled = r.TestLoss, r.TestAccuracy, r.TestRMSE, r.Backlog, true
		e := workload.Eval{Loss: rundir.Known(r.TestLoss), Accuracy: rundir.Known(r.TestAccuracy), RMSE: rundir.Known(r.TestRMSE)}
		j.met.meets(j.s.Until, e, met{at: j.job.Since(), clock: r.Clock, generation: r.Generation})
	}
	j.mu.Unlock()
	if evaluated {
		j.point(max(r.Clock, 0))
	}
}

func (j *localJob) onProgress(p wire.Progress) {
	j.mu.Lock()
	places := p.Places
	if places == nil {
		places = j.progress.Places
	}
	for _, d := range p.Places {
		if d.Worker != nil {
			j.workers[d.Process] = workerWord{slot: d.Index, WorkerCounters: *d.Worker}
		}
	}
	if p.Generation == j.progress.Generation { // a new coordinator knows it only once all have reported
		p.Clock = max(p.Clock, j.progress.Clock)
	}
	if j.whole = j.whole || p.Complete; p.Complete || !j.whole {
		j.updatesIn = p.UpdatesIn
	}
	j.progress = p
	j.progress.Places = places
	if p.Clock > 0 {
		j.speed.Note(time.Since(j.started).Seconds(), p.Clock)
	}
	due := time.Since(j.last.at) >= seriesEvery
	j.mu.Unlock()
	if due {
		j.point(p.Clock)
	}
	j.view.progress(j)
	if p.Complete {
		j.once.Do(func() { close(j.complete) })
	}
}

// keep notes a failure to write to the run's folder, and ends the job: a run
// that leaves no record is worth nothing. On a full disk it goes on; that is told.
func (j *localJob) keep(err error) {
	if err != nil {
		j.job.End(err)
		return
	}
	waits := j.dir.Waits()
	j.mu.Lock()
	was := j.recordWaits
	j.recordWaits = waits
	j.mu.Unlock()
	switch {
	case waits && !was:
		j.tell("the disk of " + j.dir.Path() + " is full: what is to be recorded there waits; make room")
	case was && !waits:
		j.tell("there is room in " + j.dir.Path() + " again: what waited is recorded")
	}
}

// tell shows a line of this command's own.
func (j *localJob) tell(text string) {
	j.view.event(j, wire.Event{Kind: "trouble", Clock: j.clock(), Text: text})
}

// insist writes something into the run's folder; while the disk is full it says so,
// and tries again.
func (j *localJob) insist(ctx context.Context, what string, write func() error) error {
	told := false
	return disk.Retry{Pause: insistPause}.Do(ctx, func() error {
		err := write()
		if disk.Full(err) && !told {
			told = true
			j.tell(fmt.Sprintf("cannot write %s (%v); trying until there is room", what, err))
		}
		return err
	})
}

// insistPause is the time between two tries to write to a full disk.
const insistPause = time.Second

// totals sums the counters of all workers, living and dead. It needs j.mu.
func (t *tally) totals() (w perdure.WorkerCounters) {
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

// point writes a row of series.csv.
func (j *localJob) point(clock perdure.Clock) {
	usage := j.job.Group().Usage()
	j.mu.Lock()
	for role, u := range usage {
		j.peak[role] = max(j.peak[role], u.RSS)
	}
	w := j.totals()
	now := point{at: time.Now(), samples: w.Samples, pushed: w.BytesPushed, pulled: w.BytesPulled, spent: j.spentInAll(), usage: usage}
	p := rundir.SeriesPoint{Seconds: j.job.Since().Seconds(), Clock: clock, TrainLoss: j.trainLoss, TrainRMSE: j.trainRMSE}
	if j.evalled {
		p.TestLoss, p.TestAccuracy, p.TestRMSE, p.Backlog, j.evalled = j.testLoss, j.testAcc, j.testRMSE, new(j.backlog), false
	}
	if v, known := j.clocksPerSecond(); known {
		p.ClocksPerSecond = &v
	}
	if dt := now.at.Sub(j.last.at).Seconds(); dt >= leastRated {
		rate := func(a, b int64, scale float64) *float64 {
			v := max(0, float64(a-b)/scale/dt)
			return &v
		}
		p.SamplesPerSecond = rate(now.samples, j.last.samples, 1)
		p.MBPushedPerSecond = rate(now.pushed, j.last.pushed, 1e6)
		p.MBPulledPerSecond = rate(now.pulled, j.last.pulled, 1e6)
		j.mbRate = *p.MBPushedPerSecond + *p.MBPulledPerSecond
		cpu := func(r wire.Role) *float64 {
			v := max(0, (usage[r].CPU-j.last.usage[r].CPU).Seconds()/dt)
			return &v
		}
		p.CPUServer, p.CPUWorker, p.CPUCoordinator = cpu(wire.RoleServer), cpu(wire.RoleWorker), cpu(wire.RoleCoordinator)
		p.TimeCompute, p.TimeStaleness, p.TimeCommunication = now.spent.since(j.last.spent).shares()
		j.last = now
	}
	if o := outageOf(&j.s.Job, &w); o != nil {
		clocks, rows, queued := float64(o.Clocks), float64(o.StaleRows), float64(o.QueuedBytes)/1e6
		p.OutageClocks, p.StaleRows, p.OutageQueuedMB, p.OutageWaitedS = &clocks, &rows, &queued, &o.WaitedS
	}
	mb := func(r wire.Role) *float64 {
		v := float64(usage[r].RSS) / 1e6
		return &v
	}
	p.MBServer, p.MBWorker, p.MBCoordinator = mb(wire.RoleServer), mb(wire.RoleWorker), mb(wire.RoleCoordinator)
	j.mu.Unlock()
	j.keep(j.dir.Point(p))
}

// summary is how the run ended; m is nil where the model is not known.
func (j *localJob) summary(m *model) rundir.Summary {
	j.mu.Lock()
	end := j.progress.End
	j.mu.Unlock()
	j.point(end)
	j.mu.Lock()
	defer j.mu.Unlock()
	job := &j.s.Job
	w := j.totals()
	// Every slot has one update of each of its clocks for each shard.
	// Copies: words of the coordinator may come until the processes are gone.
	applied, redone := j.updatesIn, j.progress.ClocksRedone
	lost := j.progress.UpdatesDue - applied
	if job.SuspendMs > 0 {
		lost = max(0, lost) // some shards may have more of a slot that was suspended
	}
	data := j.s.Params.Data
	switch {
	case job.Workload == settings.OwnWorkload:
		data = "own"
	case data == "":
		data = "embedded"
	}
	sum := rundir.Summary{
		Workload: job.Workload, Data: data, Workers: job.Slots, Servers: job.Servers, Shards: job.Shards,
		Consistency: job.Consistency, TableConsistency: job.TableConsistency, Recovery: job.Recovery, OnOutage: job.OnOutage, OutageRows: job.OutageRows, StaleScale: cmp.Or(job.StaleScale, perdure.ScaleNone), Seed: job.Seed,
		Clocks: end, WallSeconds: j.job.Since().Seconds(), TimeSplit: j.timeSplit(), TrainLoss: j.trainLoss, TrainRMSE: j.trainRMSE,
		UpdatesSent: &w.UpdatesSent, UpdatesApplied: &applied, UpdatesLost: &lost,
		ClocksRedone: &redone, BytesPushed: &w.BytesPushed, BytesPulled: &w.BytesPulled, LogBytes: j.logUsed(),
		ClockDifferential: texts(w.ClockDifferential), ReadLag: texts(w.ReadLag), MissingUpdates: texts(w.MissingUpdates),
	}
	most := *job
	for _, d := range j.progress.Places {
		if d.Role == wire.RoleWorker {
			most.Slots = max(most.Slots, d.Index+1)
		}
	}
	if most, bounded := most.MissingBound(); bounded {
		sum.MissingBound = &most
	}
	if strings.Contains(job.Models(), string(perdure.VAP)+":") {
		sum.BeyondBound = &w.BeyondBound
	}
	sum.Usage = j.roleUsage(j.job.Group().Usage())
	sum.Outage, sum.Saving = outageOf(job, &w), j.progress.Saving
	if m != nil {
		sum.TestLoss, sum.TestAccuracy, sum.TestRMSE = rundir.Finite(m.eval.Loss), rundir.Finite(m.eval.Accuracy), rundir.Finite(m.eval.RMSE)
		sum.ModelSHA256, sum.Goal = &m.sha256, j.met.goalMet(j.s.Until, m.eval)
	}
	ms := func(d *time.Duration) *float64 {
		if d == nil {
			return nil
		}
		v := float64(d.Microseconds()) / 1000
		return &v
	}
	for _, f := range j.job.Timeline() {
		sum.Failures = append(sum.Failures, rundir.Failure{
			Kind: f.Kind, Target: f.Target, AtSeconds: f.At.Seconds(), AtClock: perdure.Clock(f.AtClock),
			DetectedAfterMs: ms(f.Detected), ServingAgainAfterMs: ms(f.Serving),
			UpdatesLost: &f.UpdatesLost, ClocksRedone: &f.ClocksRedone,
		})
	}
	return sum
}

// outageOf returns what workers did in outages, nil where they wait.
func outageOf(job *perdure.JobSpec, w *perdure.WorkerCounters) *rundir.Outage {
	if !job.OnOutage.Continue {
		return nil
	}
	return &rundir.Outage{Clocks: w.OutageClocks, StaleRows: w.StaleRows, QueuedBytes: w.QueuedBytes, WaitedS: float64(w.OutageNs) / 1e9}
}

// texts makes keys of JSON of a histogram's numbers.
func texts(h map[int64]int64) map[string]int64 {
	out := make(map[string]int64, len(h))
	for k, n := range h {
		out[strconv.FormatInt(k, 10)] = n
	}
	return out
}

// numbers undoes texts.
func numbers(h map[string]int64) map[int64]int64 {
	out := make(map[int64]int64, len(h))
	for text, n := range h {
		k, _ := strconv.ParseInt(text, 10, 64) // texts wrote it
		out[k] = n
	}
	return out
}
