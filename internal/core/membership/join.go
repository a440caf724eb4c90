package membership

import "github.com/perdure/perdure"

// Admission says what becomes of a process that asks for a place.
type Admission int

// What becomes of it.
const (
	Granted   Admission = iota // it may speak
	Wait                       // its place is not settled yet
	Taken                      // a live process has the place; it may ask again later
	Refused                    // there is no such place
	Over                       // the job is done
	Departed                   // the slot has left the job
	Fixed                      // there is no free slot, and a newcomer's word makes none: all would wait for it
	Unreached                  // others cannot reach the server; it may ask again later
)

// Newcomer is a process that asks for a place.
type Newcomer struct {
	Process string // its name, of no other process
	Addr    string
	Zone    string
	PID     int
	AtCuts  bool // a worker that saves what it must keep for cuts only
	Grow    bool // a worker for which the job is to have one slot more, where none is free
}

// Join handles a process that asks for a place; index -1 asks for any free one. A
// server that does so when all are taken, or kept for who comes by number, makes the
// job's servers one more. So does one whose number such a server has.
// Asking again is safe. A worker is told Wait until its slot is settled.
func (c *Core) Join(k Kind, index int, n Newcomer) (int, perdure.Incarnation, Admission) {
	if k == Server && c.rifts.Out(n.Addr) {
		return index, 0, Unreached
	}
	a := asks{kind: k, index: index, over: c.facts.Over(), grows: n.Grow, fixed: c.facts.TwoStep() ||
		c.roster.grace == 0}
	anyPlace := index < 0 || k == Server && c.job.strange(index, n.Process)
	if anyPlace && !a.over {
		more := false
		if a.index, more = c.job.free(k, n.Process); more {
			c.facts.Servers = append(c.facts.Servers, Place{})
			c.rec.addServer("")
		}
	}
	if a.departed = k == Worker && c.facts.Departed(a.index); a.departed {
		a.again = anyPlace || c.facts.Slots[a.index].Suspended // whoever asks for any had the slot
	}
	a.none = a.index >= c.job.size(k)
	if a.index >= 0 && !a.none {
		p, o := c.job.place(k, a.index)
		a.other = p.Process != n.Process
		a.taken = a.other && p.Process != "" &&
			(o.connected && !o.ear.Suspect() || k == Server && c.job.mayBeLast(a.index))
	}
	if admission, change := a.admit(); admission != Granted {
		if change != nil && c.facts.Change == nil {
			_ = c.Scale(*change) // it asks again
		}
		return a.index, 0, admission
	}
	c.letIn(k, a.index, n, a.other, anyPlace)
	c.reconcile()
	p, _ := c.job.place(k, a.index)
	if k == Worker && !c.facts.View.Slots[a.index].Settled {
		return a.index, p.Incarnation, Wait
	}
	return a.index, p.Incarnation, Granted
}

// asks is what decides about a process that asks for a place.
type asks struct {
	kind     Kind
	index    int  // of the place; -1: it asks for any, and none is free
	none     bool // there is no such place
	over     bool // the job is done, or has failed
	departed bool // the slot has left the job
	again    bool // it was suspended: it takes part again when a process comes for it
	other    bool // another process had the place
	taken    bool // and lives, or may have the last rows of a shard
	grows    bool // the job is to have one slot more for it, where none is free
	fixed    bool // all would have to wait for it
}

// admit decides whether the process is let in. Else there may be a change that makes room
// for it, for when it asks again.
func (a *asks) admit() (admission Admission, change *Change) {
	switch {
	case a.departed && !a.again:
		return Departed, nil
	case a.over:
		return Over, nil
	case a.index < 0 && a.kind == Worker && a.grows && a.fixed:
		return Fixed, nil
	case a.index < 0 && a.kind == Worker && a.grows:
		return Taken, &Change{Add: 1, Guest: true}
	case a.index < 0:
		return Taken, nil
	case a.none:
		return Refused, nil
	case a.departed:
		return Taken, &Change{Again: []perdure.Slot{perdure.Slot(a.index)}}
	case a.taken:
		return Taken, nil
	}
	return Granted, nil
}

// letIn notes that a process has its place. other says that it is another one than had it,
// anyPlace that it asked for any.
func (c *Core) letIn(k Kind, index int, n Newcomer, other, anyPlace bool) {
	p, o := c.job.place(k, index)
	if other {
		c.take(k, index, n.Process)
		set(c.rec, &p.Any, anyPlace)
	}
	left := p.Left && p.Draining // the others come back when they come back
	if p.AtCuts != n.AtCuts {
		set(c.rec, &p.AtCuts, n.AtCuts)
	}
	if p.Addr != n.Addr || p.PID != n.PID || p.Zone != n.Zone || p.Left != left {
		next := *p
		next.Addr, next.PID, next.Zone, next.Left = n.Addr, n.PID, n.Zone, left
		set(c.rec, p, next)
	}
	o.connected, o.gone, o.assumed, o.back = true, false, false, 0
	c.job.watch.Comes(&o.ear)
	if k == Server {
		c.job.spread.SetZone(index, n.Zone)
		c.rec.touchServer(index)
	}
}

// take gives a place to a new process. The old one, if any, is dead.
func (c *Core) take(k Kind, index int, process string) {
	p, o := c.job.place(k, index)
	if p.Process != "" && !o.gone {
		c.rec.noticed(k, index, "a new process asks for its place")
	}
	if k == Server {
		p.Incarnation++
	} else if p.Process != "" || p.Incarnation == 0 {
		c.vacate(index)
	}
	*o = observed{lastClock: o.lastClock, fenced: o.fenced, ear: o.ear}
	o.ear.Succeed()
	next := *p
	next.Process, next.Draining, next.Left, next.Any = process, false, false, false
	set(c.rec, p, next)
}
