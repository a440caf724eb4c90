package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// Condition describes a server or a worker slot for status displays.
type Condition struct {
	Place
	State   string // waiting, alive, silent, dead, left
	Clock   perdure.Clock
	Problem string
	Server  *words.ServerWord // nil: no status yet
	Worker  *words.WorkerStatus
	Held    int  // of a server: the number of shards that it holds or starts to hold
	Open    bool // of a server: it may be given more
}

// Condition returns the condition of a server index or worker slot.
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

// MinClock returns the smallest known clock of all slots.
func (c *Core) MinClock() perdure.Clock { return c.job.minClock() }

// Serving reports whether every shard serves and every slot works.
func (c *Core) Serving() bool { return c.job.serves() }

// UpdatesIn returns the number of updates in the rows of all shards, according to the latest statuses. Once the job is
// done, it returns the number at that time, even if servers have left since.
func (c *Core) UpdatesIn() int64 {
	if n := c.facts.Contained; c.facts.View.Done && n > 0 {
		return n
	}
	return c.job.updatesIn()
}

// WorkersHeard reports whether every worker that may be alive has sent a status to this core. Until then the job's
// clock may be higher than the known one.
func (c *Core) WorkersHeard() bool {
	for i := range c.job.slots {
		if o := &c.job.slots[i]; c.facts.Slots[i].Process != "" && o.worker == nil && !o.gone &&
			!c.facts.View.Slots[i].Left && !c.facts.View.Done {
			return false
		}
	}
	return true
}
