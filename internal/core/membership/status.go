package membership

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// ServerSays processes the status of a server. It returns false if an earlier status is missing, so that the server
// must send all of it.
func (c *Core) ServerSays(index int, process string, d *words.ServerDelta) (fits bool) {
	p, o := c.job.place(Server, index)
	if p.Process != process {
		return true
	}
	counts := c.job.heard(o)
	if o.server == nil {
		if d.Number != 1 {
			return false
		}
		o.server = &words.ServerWord{}
	}
	before := o.server.Problem()
	c.deadlocks.longest = max(c.deadlocks.longest, d.Hold.LongestMs)
	suspect := counts && !c.deadlocks.suspects(c.job, o, d.Hold) && o.ear.Says()
	news := suspect || o.back > 0 && c.job.tick > o.back
	switch {
	case suspect:
		o.back = c.job.tick
		c.rec.touchServer(index)
	case news:
		o.back = 0
		c.rec.touchServer(index)
	}
	if d.Draining && !p.Draining {
		set(c.rec, &p.Draining, true)
		c.queue.Leaving.Add(index)
		within := ""
		if d.Notice > 0 {
			within = fmt.Sprintf(" within %.3g s", float64(d.Notice)/1000)
		}
		c.rec.event("draining", target(Server, index),
			"server:%d is draining and will stop%s; other servers take over its shards", index, within)
		c.rec.touchServer(index)
		news = true
	}
	if d.Draining && d.Notice > 0 {
		o.notice.Tell(c.job.tick, d.Notice, c.job.seconds)
		news = c.chains.hurry() || news // the time may be so short that it is nearly over
	}
	o.server.Take(d, func(s perdure.ShardID, before *words.ShardWord, now *words.ShardDelta) {
		news = c.queue.Hears(s, before, now, c.facts.View.End) || news
	})
	if now := o.server.Problem(); now != "" && before == "" {
		c.rec.event("trouble", target(Server, index), "server:%d cannot continue and will retry: %s", index, now)
	}
	if news {
		c.reconcile()
	}
	return true
}

// WorkerStatus processes the status of a worker.
func (c *Core) WorkerStatus(slot int, process string, st words.WorkerStatus) {
	if p, o := c.job.place(Worker, slot); p.Process == process {
		counts := c.job.heard(o)
		v, before := &c.facts.View, o.worker
		news := before == nil || before.Generation != st.Generation || before.Finished != st.Finished ||
			len(st.Acked) > 0 ||
			v.Pause || v.End > 0 && st.Clock >= v.End || v.Slots[slot].Until > 0 && st.Clock >= v.Slots[slot].Until
		if st.Crowded {
			c.queue.Calling.Add(slot)
			news = news || before == nil || !before.Crowded || before.Revision < c.cuts.durableAt
		}
		o.worker = &st
		if counts {
			o.ear.Says()
		}
		if st.Generation == c.facts.View.Generation {
			c.rec.setClock(slot, st.Clock)
		}
		if news || len(c.queue.Woken.All()) > 0 {
			c.reconcile()
		}
	}
}
