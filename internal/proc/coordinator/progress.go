package coordinator

import (
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/data/wire"
)

// progress tells the supervisor how the job is.
func (c *Coordinator) progress(always bool) {
	c.progressed, c.completed = c.core.MinClock(), c.core.Complete()
	if c.supervisor == nil {
		return
	}
	facts := c.core.Facts()
	p := wire.Progress{
		Revision: facts.View.Revision, Generation: facts.View.Generation, Clock: c.core.MinClock(),
		End: facts.View.End, Durable: facts.View.Durable, Complete: c.core.Complete(), Done: facts.View.Done,
		Closed: c.core.Closed(), Serving: c.core.Serving(),
		UpdatesIn: c.core.UpdatesIn(), UpdatesLost: facts.UpdatesLost, ClocksRedone: facts.ClocksRedone,
		UpdatesDue: facts.SlotClocks(facts.View.End) * int64(facts.Job.Shards),
	}
	p.Saving = recovery.Saving(facts.Job.Recovery, facts.Saving, facts.Running.Saving)
	if always || p.Complete {
		p.Places = c.places(facts)
	}
	c.supervisor.send(wire.Control(wire.KindProgress, p))
}

// reports is what the supervisor was told of each place.
type reports map[seat]wire.PlaceProgress

// places returns what is to be told of the places: those of which something is new.
func (c *Coordinator) places(facts *membership.Facts) (news []wire.PlaceProgress) {
	if c.reported == nil {
		c.reported = reports{}
	}
	tell := func(at seat, p wire.PlaceProgress) {
		if before, told := c.reported[at]; !told || !samePlace(&before, &p) {
			c.reported[at] = p
			news = append(news, p)
		}
	}
	for i := range facts.Servers {
		tell(seat{membership.Server, i}, place(wire.RoleServer, i, c.core.Condition(membership.Server, i)))
	}
	for i := range facts.Slots {
		w := place(wire.RoleWorker, i, c.core.Condition(membership.Worker, i))
		w.Span, w.Awaited = facts.View.Slots[i].Span, c.core.Awaited(i)
		tell(seat{membership.Worker, i}, w)
	}
	return news
}

// samePlace reports whether there is nothing new of a place.
func samePlace(a, b *wire.PlaceProgress) bool {
	x, y := *a, *b
	x.Worker, y.Worker = nil, nil
	if x != y || (a.Worker == nil) != (b.Worker == nil) {
		return false
	}
	return a.Worker == nil || a.Worker.Equal(b.Worker)
}

func place(role wire.Role, index int, d membership.Condition) wire.PlaceProgress {
	p := wire.PlaceProgress{
		Role: role, Index: index, Process: d.Process, PID: d.PID, Incarnation: d.Incarnation,
		State: d.State, Clock: d.Clock, Problem: d.Problem,
	}
	if d.Worker != nil {
		p.Worker = &d.Worker.Counters
	}
	return p
}
