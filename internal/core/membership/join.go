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

// Join handles a process that asks for a place; index -1 asks for any free one. A
// server that does so when all are taken, or kept for who comes by number, makes the
// job's servers one more. So does one whose number such a server has.
// Asking again is safe. A worker is told Wait until its slot is settled.
func (c *Core) Join(k Kind, index int, n Newcomer) (int, perdure.Incarnation, Verdict) {
	if k == Worker && c.departed(index) && !c.facts.Slots[index].Suspended {
		return index, 0, Departed
	}
	if c.facts.View.Done || c.facts.Failed != "" {
		return index, 0, Over
	}
	anyPlace := index < 0 || k == Server && c.strange(index, n.Process)
	if anyPlace {
		index = c.free(k, n.Process)
	}
	if index < 0 {
		if k == Worker && n.Grow && (c.twoStep() || c.grace == 0) {
			return -1, 0, Fixed
		}
		if k == Worker && n.Grow && c.facts.Change == nil {
			_ = c.Scale(Change{Add: 1, Guest: true}) // it asks again
		}
		return -1, 0, Taken
	}
	if index >= c.size(k) {
		return index, 0, Refused
	}
	if k == Worker && c.departed(index) {
		if c.facts.Change == nil {
			_ = c.Scale(Change{Again: []perdure.Slot{perdure.Slot(index)}}) // it asks again
		}
		return index, 0, Taken
	}
	p, o := c.place(k, index)
	if p.Process != n.Process {
		if p.Process != "" && (o.connected && !o.ear.Suspect() || k == Server && c.mayBeLast(index)) {
			return index, 0, Taken
		}
		c.take(k, index, n.Process)
		p.Any = anyPlace
	}
	left := p.Left && p.Draining // the others come back when they come back
	if p.AtCuts != n.AtCuts {
		p.AtCuts, c.dirty = n.AtCuts, true
	}
	if p.Addr != n.Addr || p.PID != n.PID || p.Zone != n.Zone || p.Left != left {
		p.Addr, p.PID, p.Zone, p.Left = n.Addr, n.PID, n.Zone, left
		c.dirty = true
	}
	o.connected, o.gone, o.assumed, o.back = true, false, false, 0
	c.watch.Comes(&o.ear)
	if k == Server {
		c.settleIn(index, n.Zone)
		c.lookAt(index)
	}
	c.reconcile()
	if k == Worker && !c.facts.View.Slots[index].Settled {
		return index, p.Incarnation, Wait
	}
	return index, p.Incarnation, Granted
}

// departed reports whether there is such a slot, and it has left the job.
func (c *Core) departed(slot int) bool {
	slots := c.facts.View.Slots
	return slot >= 0 && slot < len(slots) && slots[slot].Left
}

// maxServers bounds what joins can make of a job; as JobSpec.Validate has it.
const maxServers = 4096

// strange reports whether a server's place is a living process's that asked for any,
// and not the one's who asks for it by number.
func (c *Core) strange(index int, process string) bool {
	if index >= len(c.servers) {
		return false
	}
	p, o := &c.facts.Servers[index], &c.servers[index]
	return p.Any && !o.gone && p.Process != process
}

// free finds the place that a process has already, the first that is vacant, or
// a slot whose process has been out of touch for a third of the patience: a
// worker that nobody watches, which a fresh one replaces. The old one, should it
// come back, is fenced. For a server there is always one, unless it is to be seen yet
// whether one will be vacant.
func (c *Core) free(k Kind, process string) int {
	vacant, lost := -1, -1
	for i := range c.size(k) {
		p, o := c.place(k, i)
		if p.Process == process {
			return i
		}
		if k == Worker && (c.facts.View.Slots[i].Left || c.isEarly(i)) {
			continue
		}
		if vacant < 0 && c.isFree(k, i) {
			vacant = i
		}
		if lost < 0 && k == Worker && !o.connected && c.watch.Silence(&o.ear) > c.watch.Patience()/3 {
			lost = i
		}
	}
	if vacant >= 0 {
		return vacant
	}
	if k == Server && c.placed() && !c.inDoubt() && len(c.servers) < maxServers {
		c.facts.Servers = append(c.facts.Servers, Place{})
		c.addServer("")
		return len(c.servers) - 1
	}
	return lost
}

// isFree reports whether a place is free for who asks for any. That of a server that
// came by number is kept for its next process, which asks for it by number too; that
// of one which may have the last rows of a shard, for that one.
func (c *Core) isFree(k Kind, index int) bool {
	p, o := c.place(k, index)
	switch {
	case p.Process == "":
		return true
	case k == Worker || !o.gone:
		return o.gone
	}
	return p.Left && !(o.assumed && c.irreplaceable() && c.last(index))
}

// inDoubt reports whether a server is out of touch whose place will be vacant, should
// it be dead: who asks for any place waits until that is clear.
func (c *Core) inDoubt() bool {
	for i := range c.servers {
		p, o := &c.facts.Servers[i], &c.servers[i]
		if !o.gone && !p.Left && !p.Draining && (p.Any || c.facts.Job.NoReplace) && !c.eligible(i) {
			return true
		}
	}
	return false
}

// take gives a place to a new process. The old one, if any, is dead.
func (c *Core) take(k Kind, index int, process string) {
	p, o := c.place(k, index)
	if p.Process != "" && !o.gone {
		c.noticed(k, index, "a new process asks for its place")
	}
	if k == Server {
		p.Incarnation++
	} else if p.Process != "" || p.Incarnation == 0 {
		c.vacate(index)
	}
	*o = observed{lastClock: o.lastClock, fenced: o.fenced, ear: o.ear}
	o.ear.Succeed()
	p.Process, p.Draining, p.Left, p.Any = process, false, false, false
	c.dirty = true
}
