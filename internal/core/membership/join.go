package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// Applicant is a process that asks for a slot or server index.
type Applicant struct {
	Process string // unique name
	Addr    string
	Zone    string
	PID     int
	AtCuts  bool // a worker that saves its state only at cuts
	Grow    bool // a worker for which a slot may be created if none is free
}

// Join handles a process that asks for a slot or server index; index -1 asks for any free one. A server that asks for
// any gets a new index if all are taken or reserved for a process that asks by number. So does a server whose requested
// index was taken by one that asked for any. Join is idempotent. A worker gets Wait until its slot is settled.
func (c *Core) Join(k Kind, index int, n Applicant) (int, perdure.Incarnation, Admission) {
	if k == Server && c.partitions.IsExcluded(n.Addr) {
		return index, 0, Unreachable
	}
	a := joinRequest{
		Worker: k == Worker, Index: index, Over: c.record.IsOver(), Grows: n.Grow,
		Fixed: c.record.TwoStep() || c.slotMembership.grace == 0,
	}
	anyPlace := index < 0 || k == Server && c.job.heldByOther(index, n.Process)
	if anyPlace && !a.Over {
		more := false
		if a.Index, more = c.job.free(k, n.Process); more {
			c.record.Servers = append(c.record.Servers, Member{})
			c.rec.addServer("")
		}
	}
	if a.Departed = k == Worker && c.record.Departed(a.Index); a.Departed {
		// a process that asks for any slot held this one before
		a.Suspended = anyPlace || c.record.Slots[a.Index].Suspended
	}
	a.None = a.Index >= c.job.size(k)
	if a.Index >= 0 && !a.None {
		p, o := c.job.member(k, a.Index)
		a.Other = p.Process != n.Process
		a.Taken = a.Other && p.Process != "" &&
			(o.connected && !o.liveness.IsSuspect() || k == Server && c.job.mayBeLastHolder(a.Index))
	}
	if admission, change := a.Admit(); admission != Granted {
		if change != nil && c.record.Change == nil {
			_ = c.Scale(*change) // the process asks again
		}
		return a.Index, 0, admission
	}
	c.admit(k, a.Index, n, a.Other, anyPlace)
	c.reconcile()
	p, _ := c.job.member(k, a.Index)
	if k == Worker && !c.record.View.Slots[a.Index].Settled {
		return a.Index, p.Incarnation, Wait
	}
	return a.Index, p.Incarnation, Granted
}

// admit records that a process has its slot or index. other reports that another process had it before, anyPlace that
// the process asked for any.
func (c *Core) admit(k Kind, index int, n Applicant, other, anyPlace bool) {
	p, o := c.job.member(k, index)
	if other {
		c.assign(k, index, n.Process)
		set(c.rec, &p.AnyIndex, anyPlace)
	}
	left := p.Left && p.Draining // a released server stays released when it reconnects
	if p.AtCuts != n.AtCuts {
		set(c.rec, &p.AtCuts, n.AtCuts)
	}
	if p.Addr != n.Addr || p.PID != n.PID || p.Zone != n.Zone || p.Left != left {
		next := *p
		next.Addr, next.PID, next.Zone, next.Left = n.Addr, n.PID, n.Zone, left
		set(c.rec, p, next)
	}
	o.connected, o.gone, o.deathAssumed, o.returnedTick = true, false, false, 0
	c.job.detector.RecordConnected(&o.liveness)
	if k == Server {
		if o.server != nil {
			o.server.Hold = protocol.LockHold{} // the lock may have been released since the last status
		}
		c.job.replicas.SetZone(index, n.Zone)
		c.rec.touchServer(index)
	}
}

// assign assigns a slot or index to a new process. The old one, if any, is dead.
func (c *Core) assign(k Kind, index int, process string) {
	p, o := c.job.member(k, index)
	if p.Process != "" && !o.gone {
		c.rec.recordDeath(k, index, "a new process has replaced it")
	}
	if k == Server {
		p.Incarnation++
	} else if p.Process != "" || p.Incarnation == 0 {
		c.vacate(index)
	}
	*o = observed{lastClock: o.lastClock, fenced: o.fenced, liveness: o.liveness}
	o.liveness.ResetForReplacement()
	next := *p
	next.Process, next.Draining, next.Left, next.AnyIndex = process, false, false, false
	set(c.rec, p, next)
}
