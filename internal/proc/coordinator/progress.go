package coordinator

import (
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
)

// sendProgress reports the state of the job to the supervisor.
func (c *Coordinator) sendProgress(always bool) {
	c.progressed, c.completed = c.core.MinClock(), c.core.Complete()
	if c.supervisor == nil {
		return
	}
	facts := c.core.Record()
	p := wire.Progress{
		Revision: facts.View.Revision, Generation: facts.View.Generation, Clock: c.core.MinClock(),
		End: facts.End(), Durable: facts.View.Durable, Complete: c.core.Complete(), Done: facts.View.Done,
		Closed: c.core.FinalCheckpointDone(), Serving: c.core.Serving(),
		UpdatesApplied: c.core.NumUpdates(), UpdatesLost: facts.UpdatesLost, ClocksRedone: facts.ClocksRedone,
		UpdatesExpected: facts.SlotClocks(facts.End()) * int64(facts.Job.Shards),
	}
	p.Saving = recovery.Saving(facts.Job.Recovery, facts.Saving, facts.Running.Saving)
	if always || p.Complete {
		p.Members = c.changedMembers(facts)
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
	if told := &(*r)[p.Index]; told.Role == "" || !sameProgress(told, &p) {
		*told = p
		news = append(news, p)
	}
	return news
}

// changedMembers returns reports for the servers and slots that have changed.
func (c *Coordinator) changedMembers(facts *membership.JobRecord) (news []wire.MemberProgress) {
	for i := range facts.Servers {
		p := memberProgress(wire.RoleServer, i, c.core.MemberStatus(membership.Server, i))
		news = c.reported.servers.appendChanged(p, news)
	}
	for i := range facts.Slots {
		w := memberProgress(wire.RoleWorker, i, c.core.MemberStatus(membership.Worker, i))
		w.Interval, w.Awaited = facts.View.Slots[i].Interval, c.core.NeedsProcess(i)
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
