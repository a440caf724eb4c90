package coordinator

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
)

// jobClock is the clock that stands for the progress of a job.
type jobClock struct {
	generation perdure.Generation
	highest    perdure.Clock // of this generation
}

// Of returns MinClock, or the mean of the slots' clocks under a model that lets these be far apart: a slot that stands
// does not stop the job. The clock falls only if the job is rolled back.
func (j *jobClock) Of(core *membership.Core) perdure.Clock {
	f := core.Record()
	if !f.Job.Unbounded(f.View.Tables) {
		return core.MinClock()
	}
	if j.generation != f.View.Generation {
		*j = jobClock{generation: f.View.Generation}
	}
	mean := f.View.MeanClock(func(slot perdure.Slot) perdure.Clock {
		return core.MemberStatus(membership.Worker, int(slot)).Clock
	})
	j.highest = max(j.highest, mean, core.MinClock())
	return j.highest
}

// sendProgress reports the state of the job to the supervisor.
func (c *Coordinator) sendProgress(always bool) {
	c.completed = c.core.Complete()
	if c.supervisor == nil {
		return
	}
	record := c.core.Record()
	p := wire.Progress{
		Revision: record.View.Revision, Generation: record.View.Generation, Clock: c.latest.Clock,
		End: record.End(), Durable: record.View.Durable, Complete: c.core.Complete(), Done: record.View.Done,
		Closed: c.core.FinalCheckpointDone(), SavesAtCuts: record.SavesAtCuts(membership.AnySlot),
		Serving:        c.core.Serving(),
		UpdatesApplied: c.core.NumUpdates(), UpdatesLost: record.UpdatesLost, ClocksRedone: record.ClocksRedone,
		UpdatesExpected: record.SlotClocks(record.End()) * int64(record.Job.Shards),
	}
	p.Saving = recovery.Saving(record.Job.Recovery, record.Saving, record.Running.Saving)
	if always || p.Complete {
		p.Members = c.changedMembers(record)
	}
	c.supervisor.send(wire.Control(wire.KindProgress, p))
}

// lastReports holds the last reports to the supervisor, by kind and index.
type lastReports struct{ servers, workers memberReports }

// memberReports holds the last reports about one kind of process. A zero element means that nothing was reported yet.
type memberReports []wire.MemberProgress

// appendChanged appends p to news if it differs from the last report.
func (r *memberReports) appendChanged(p wire.MemberProgress, news []wire.MemberProgress) []wire.MemberProgress {
	for len(*r) <= p.Index {
		*r = append(*r, wire.MemberProgress{})
	}
	if sent := &(*r)[p.Index]; sent.Role == "" || !sameProgress(sent, &p) {
		*sent = p
		news = append(news, p)
	}
	return news
}

// changedMembers returns reports for the servers and slots that have changed.
func (c *Coordinator) changedMembers(record *membership.JobRecord) (news []wire.MemberProgress) {
	for i := range record.Servers {
		p := memberProgress(wire.RoleServer, i, c.core.MemberStatus(membership.Server, i))
		news = c.reported.servers.appendChanged(p, news)
	}
	for i := range record.Slots {
		w := memberProgress(wire.RoleWorker, i, c.core.MemberStatus(membership.Worker, i))
		w.Interval, w.Awaited = record.View.Slots[i].Interval, c.core.NeedsProcess(i)
		news = c.reported.workers.appendChanged(w, news)
	}
	return news
}

// sameProgress reports whether two reports are equal.
func sameProgress(a, b *wire.MemberProgress) bool {
	x, y := *a, *b
	x.Worker, y.Worker = nil, nil
	if x != y || (a.Worker == nil) != (b.Worker == nil) {
		return false
	}
	return a.Worker == b.Worker || a.Worker.Equal(b.Worker) // usually the same pointer
}

func memberProgress(role wire.Role, index int, d membership.MemberStatus) wire.MemberProgress {
	p := wire.MemberProgress{
		Role: role, Index: index, Process: d.Process, PID: d.PID, Incarnation: d.Incarnation,
		State: d.State, Clock: d.Clock, Problem: d.Problem,
	}
	if d.Worker != nil {
		p.Worker = &d.Worker.Counters
	}
	return p
}
