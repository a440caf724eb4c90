package membership

import "github.com/perdure/perdure"

// Verdict says what becomes of a process that asks for a place.
type Verdict int

// The verdicts on a joining process.
const (
	Granted  Verdict = iota // it may speak
	Wait                    // its place is not settled yet
	Taken                   // a live process has the place; it may ask again later
	Refused                 // there is no such place
	Over                    // the job is done
	Departed                // the slot has left the job
	Fixed                   // there is no free slot, and a newcomer's word alone makes no more: all would wait for it
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

// maxServers bounds what joins can make of a job; as JobSpec.Validate has it.
const maxServers = 4096

// Join handles a process that asks for a place; index -1 asks for any free one. A
// server that does so when all are taken, or kept for who comes by number, makes the
// job's servers one more. So does one whose number such a server has.
// Asking again is safe. A worker is told Wait until its slot is settled.
func (c *Core) Join(k Kind, index int, n Newcomer) (int, perdure.Incarnation, Verdict) {
	if k == Worker && c.facts.departed(index) && !c.facts.Slots[index].Suspended {
		return index, 0, Departed
	}
	if c.facts.over() {
		return index, 0, Over
	}
	anyPlace := index < 0 || k == Server && c.job.strange(index, n.Process)
	if anyPlace {
		more := false
		if index, more = c.job.free(k, n.Process); more {
			c.facts.Servers = append(c.facts.Servers, Place{})
			c.rec.addServer("")
		}
	}
	if index < 0 {
		if k == Worker && n.Grow && (c.facts.twoStep() || c.roster.grace == 0) {
			return -1, 0, Fixed
		}
		if k == Worker && n.Grow && c.facts.Change == nil {
			_ = c.Scale(Change{Add: 1, Guest: true}) // it asks again
		}
		return -1, 0, Taken
	}
	if index >= c.job.size(k) {
		return index, 0, Refused
	}
	if k == Worker && c.facts.departed(index) {
		if c.facts.Change == nil {
			_ = c.Scale(Change{Again: []perdure.Slot{perdure.Slot(index)}}) // it asks again
		}
		return index, 0, Taken
	}
	p, o := c.job.place(k, index)
	if p.Process != n.Process {
		if p.Process != "" && (o.connected && !o.ear.Suspect() || k == Server && c.job.mayBeLast(index)) {
			return index, 0, Taken
		}
		c.take(k, index, n.Process)
		p.Any = anyPlace
	}
	left := p.Left && p.Draining // the others come back when they come back
	if p.AtCuts != n.AtCuts {
		p.AtCuts, c.rec.dirty = n.AtCuts, true
	}
	if p.Addr != n.Addr || p.PID != n.PID || p.Zone != n.Zone || p.Left != left {
		p.Addr, p.PID, p.Zone, p.Left = n.Addr, n.PID, n.Zone, left
		c.rec.dirty = true
	}
	o.connected, o.gone, o.assumed, o.back = true, false, false, 0
	c.job.watch.Comes(&o.ear)
	if k == Server {
		c.job.spread.Settle(index, n.Zone)
		c.rec.touchServer(index)
	}
	c.reconcile()
	if k == Worker && !c.facts.View.Slots[index].Settled {
		return index, p.Incarnation, Wait
	}
	return index, p.Incarnation, Granted
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
	p.Process, p.Draining, p.Left, p.Any = process, false, false, false
	c.rec.dirty = true
}
