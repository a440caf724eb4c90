package localrun

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/rundir"
)

// roleUsage is the resource usage of the processes of each role.
type roleUsage = map[wire.Role]supervisor.Usage

// sample is one of two measurements between which a rate is computed.
type sample struct {
	at             time.Time
	samples        int64
	pushed, pulled int64
	spent          timeSpent
	usage          roleUsage
}

// minRated is the shortest time, in seconds, over which a rate of the workers' counters is computed. Workers report
// them once a second, so readers that need a smooth rate must average several points.
const minRated = 0.4

// Point returns a point of the series at a clock; since is the time since the first clock started. used is the current
// usage of the processes.
func (t *jobStats) Point(clock perdure.Clock, since time.Duration, used roleUsage, now time.Time) rundir.SeriesPoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	for role, u := range used {
		t.peak[role] = max(t.peak[role], u.RSS)
	}
	w := t.totals()
	p := rundir.SeriesPoint{Seconds: since.Seconds(), Clock: clock, TrainLoss: t.train.loss, TrainRMSE: t.train.rmse}
	if t.test.fresh {
		p.TestLoss, p.TestAccuracy, p.TestRMSE = t.test.loss, t.test.accuracy, t.test.rmse
		p.Backlog, t.test.fresh = new(t.test.backlog), false
	}
	p.ClocksPerSecond = t.clocksPerSecond(now)
	t.rates(&p, sample{
		at: now, samples: w.Samples, pushed: w.BytesPushed, pulled: w.BytesPulled, spent: t.spentInAll(), usage: used,
	})
	if o := t.outages(&w); o != nil {
		clocks, rows, queued := float64(o.Clocks), float64(o.StaleRows), float64(o.QueuedBytes)/1e6
		p.OutageClocks, p.StaleRows, p.OutageQueuedMB, p.OutageWaitedS = &clocks, &rows, &queued, &o.WaitedS
	}
	mb := func(r wire.Role) *float64 { return new(float64(used[r].RSS) / 1e6) }
	p.MBServer, p.MBWorker, p.MBCoordinator = mb(wire.RoleServer), mb(wire.RoleWorker), mb(wire.RoleCoordinator)
	return p
}

// Clocks returns the clock of every slot; since is the time since the first clock started.
func (t *jobStats) Clocks(since time.Duration) rundir.ClocksPoint {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := rundir.ClocksPoint{Seconds: since.Seconds(), Clock: t.progress.Clock}
	for _, d := range t.progress.Members {
		if d.Role != wire.RoleWorker {
			continue
		}
		for len(p.Slots) <= d.Index {
			p.Slots = append(p.Slots, rundir.NoProcess)
		}
		if d.Process != "" && d.State != "dead" && d.State != "left" {
			p.Slots[d.Index] = max(d.Clock, p.Clock) // workers report their clocks once a second
		}
	}
	return p
}

// rates sets the point's rates since the last sample. If that was too recent, it leaves them to the next point. The
// caller must hold t.mu.
func (t *jobStats) rates(p *rundir.SeriesPoint, now sample) {
	seconds := now.at.Sub(t.last.at).Seconds()
	if seconds < minRated {
		return
	}
	rate := func(a, b int64, scale float64) *float64 {
		return new(max(0, float64(a-b)/scale/seconds))
	}
	p.SamplesPerSecond = rate(now.samples, t.last.samples, 1)
	p.MBPushedPerSecond = rate(now.pushed, t.last.pushed, 1e6)
	p.MBPulledPerSecond = rate(now.pulled, t.last.pulled, 1e6)
	t.mbRate = *p.MBPushedPerSecond + *p.MBPulledPerSecond
	cpu := func(r wire.Role) *float64 {
		return new(max(0, (now.usage[r].CPU-t.last.usage[r].CPU).Seconds()/seconds))
	}
	p.CPUServer, p.CPUWorker, p.CPUCoordinator = cpu(wire.RoleServer), cpu(wire.RoleWorker), cpu(wire.RoleCoordinator)
	p.TimeCompute, p.TimeStaleness, p.TimeCommunication = now.spent.minus(t.last.spent).shares()
	t.last = now
}

// outages returns the workers' statistics of outages, or nil if workers wait during outages. The caller must hold t.mu.
func (t *jobStats) outages(w *perdure.WorkerCounters) *rundir.Outage {
	if !t.run.Job.OnOutage.Continue {
		return nil
	}
	return &rundir.Outage{
		Clocks: w.OutageClocks, StaleRows: w.StaleRows, QueuedBytes: w.QueuedBytes, WaitedS: float64(w.OutageNs) / 1e9,
	}
}
