package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// MemberStatus describes a server or a worker slot for status displays.
type MemberStatus struct {
	Member
	State    string // waiting, alive, silent, dead, left
	Clock    perdure.Clock
	Problem  string
	Server   *protocol.ObservedServer // nil: no status yet
	Worker   *protocol.WorkerStatus
	Held     int  // of a server: the number of shards that it holds or starts to hold
	Eligible bool // of a server: it may be given more
}

// MemberStatus returns the condition of a server index or worker slot.
func (c *Core) MemberStatus(k Kind, index int) MemberStatus {
	p, o := c.job.member(k, index)
	d := MemberStatus{Member: *p, State: "alive", Clock: o.lastClock, Server: o.server, Worker: o.worker}
	switch {
	case k == Worker && c.record.View.Slots[index].Left:
		d.State = "left"
	case o.gone:
		d.State = "dead"
	case p.Process == "":
		d.State = "waiting"
	case o.liveness.IsSuspect():
		d.State = "silent"
	case !o.connected:
		d.State = "waiting"
	}
	if k == Server {
		d.Held, d.Eligible = c.job.replicas.NumShards(index), c.job.eligible(index)
	}
	if k == Server && o.server != nil {
		d.Clock, d.Problem = o.server.MinClock(), o.server.Problem()
	}
	return d
}

// MinClock returns the smallest known clock of all slots.
func (c *Core) MinClock() perdure.Clock { return c.job.minClock() }

// Serving reports whether every shard serves and every slot works.
func (c *Core) Serving() bool { return c.job.isServing() }

// NumUpdates returns the number of updates in the rows of all shards, according to the latest statuses. Once the job is
// done, it returns the number at that time, even if servers have left since.
func (c *Core) NumUpdates() int64 {
	if n := c.record.FinalUpdates; c.record.View.Done && n > 0 {
		return n
	}
	return c.job.numUpdates()
}

// AllWorkersReported reports whether every worker that may be alive has sent a status to this core. Until then the
// job's clock may be higher than the known one.
func (c *Core) AllWorkersReported() bool {
	for i := range c.job.slots {
		if o := &c.job.slots[i]; c.record.Slots[i].Process != "" && o.worker == nil && !o.gone &&
			!c.record.View.Slots[i].Left && !c.record.View.Done {
			return false
		}
	}
	return true
}
