package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Condition describes a place for people.
type Condition struct {
	Place
	State   string // waiting, alive, silent, dead, left
	Clock   perdure.Clock
	Problem string
	Server  *words.ServerWord // nil: it has said nothing yet
	Worker  *words.WorkerStatus
	Held    int  // of a server: how many shards it holds, or begins to hold
	Open    bool // of a server: it may be given more
}

// Condition returns how a place is.
func (c *Core) Condition(k Kind, index int) Condition {
	p, o := c.job.place(k, index)
	d := Condition{Place: *p, State: "alive", Clock: o.lastClock, Server: o.server, Worker: o.worker}
	switch {
	case k == Worker && c.facts.View.Slots[index].Left:
		d.State = "left"
	case o.gone:
		d.State = "dead"
	case p.Process == "":
		d.State = "waiting"
	case o.ear.Suspect():
		d.State = "silent"
	case !o.connected:
		d.State = "waiting"
	}
	if k == Server {
		d.Held, d.Open = c.job.spread.Load(index), c.job.eligible(index)
	}
	if k == Server && o.server != nil {
		d.Clock, d.Problem = o.server.MinClock(), o.server.Problem()
	}
	return d
}

// MinClock returns the least clock of all slots, as far as is known.
func (c *Core) MinClock() perdure.Clock { return c.job.minClock() }

// Serving reports whether every shard serves and every slot works.
func (c *Core) Serving() bool { return c.job.serves() }

// UpdatesIn returns how many updates the rows of all shards contain, by their
// newest word; once the job is done, those that they had then, whoever has gone since.
func (c *Core) UpdatesIn() int64 {
	if n := c.facts.Contained; c.facts.View.Done && n > 0 {
		return n
	}
	return c.job.updatesIn()
}

// WorkersHeard reports whether every worker that may live has said where it is, since this core
// began: before that the job's clock may be higher than what is known of it.
func (c *Core) WorkersHeard() bool {
	for i := range c.job.slots {
		if o := &c.job.slots[i]; c.facts.Slots[i].Process != "" && o.worker == nil && !o.gone &&
			!c.facts.View.Slots[i].Left && !c.facts.View.Done {
			return false
		}
	}
	return true
}
