package membership

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// HandleServerDelta processes the status of a server. It returns false if an earlier status is missing, so that the
// server must send all of it.
func (c *Core) HandleServerDelta(index int, process string, d *protocol.ServerDelta) (fits bool) {
	p, o := c.job.member(Server, index)
	if p.Process != process {
		return true
	}
	counts := c.job.recordSign(o)
	if o.server == nil {
		if d.Number != 1 {
			return false
		}
		o.server = &protocol.ObservedServer{}
	}
	before := o.server.Problem()
	c.deadlocks.longest = max(c.deadlocks.longest, d.Hold.LongestMs)
	suspect := counts && !c.deadlocks.suspects(c.job, o, d.Hold) && o.liveness.RecordStatus()
	news := suspect || o.returnedTick > 0 && c.job.tick > o.returnedTick
	switch {
	case suspect:
		o.returnedTick = c.job.tick
		c.rec.touchServer(index)
	case news:
		o.returnedTick = 0
		c.rec.touchServer(index)
	}
	if d.Draining && !p.Draining {
		set(c.rec, &p.Draining, true)
		c.queue.Leaving.Add(index)
		within := ""
		if d.NoticeMs > 0 {
			within = fmt.Sprintf(" within %.3g s", float64(d.NoticeMs)/1000)
		}
		c.rec.event("draining", target(Server, index),
			"server:%d is draining and will stop%s; other servers take over its shards", index, within)
		c.rec.touchServer(index)
		news = true
	}
	if d.Draining && d.NoticeMs > 0 {
		o.drain.Set(c.job.tick, d.NoticeMs, c.job.seconds)
		news = c.chains.markUrgentDrains() || news // the time may be so short that it is nearly over
	}
	o.server.Apply(d, func(s perdure.ShardID, before *protocol.ObservedShard, now *protocol.ShardDelta) {
		news = c.queue.ShardReported(s, before, now, c.record.View.End) || news
	})
	if now := o.server.Problem(); now != "" && before == "" {
		c.rec.event("trouble", target(Server, index), "server:%d cannot continue and will retry: %s", index, now)
	}
	if news {
		c.reconcile()
	}
	return true
}

// HandleWorkerStatus processes the status of a worker.
func (c *Core) HandleWorkerStatus(slot int, process string, st protocol.WorkerStatus) {
	if p, o := c.job.member(Worker, slot); p.Process == process {
		counts := c.job.recordSign(o)
		v, before := &c.record.View, o.worker
		news := before == nil || before.Generation != st.Generation || before.Finished != st.Finished ||
			len(st.Acked) > 0 ||
			v.Pause || v.End > 0 && st.Clock >= v.End || v.Slots[slot].Until > 0 && st.Clock >= v.Slots[slot].Until
		if st.NeedsCut {
			c.queue.CutRequesters.Add(slot)
			news = news || before == nil || !before.NeedsCut || before.Revision < c.cuts.durableAt
		}
		o.worker = &st
		if counts {
			o.liveness.RecordStatus()
		}
		if st.SavesOwn && !p.SavesOwn {
			set(c.rec, &p.SavesOwn, true)
		}
		if st.NeedsCopy {
			c.queue.Copying.Add(slot)
		}
		c.queue.MarkAwaitingSource()
		news = news || len(c.queue.Copying.All()) > 0
		if st.Generation == c.record.View.Generation {
			c.rec.setClock(slot, st.Clock)
		}
		if news || len(c.queue.DirtySlots.All()) > 0 {
			c.reconcile()
		}
	}
}
