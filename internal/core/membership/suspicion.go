package membership

import (
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/words"
)

// A healthy server holds the lock of a shard while it applies a clock, makes progress, and sends heartbeats all the
// while. A deadlocked server also sends heartbeats. A server is considered deadlocked if it has held one lock without
// progress for more than holdFactor times the longest such hold that any server of the job has reported. The limit is
// at least leastHold and at most mostHold, both in seconds.
const (
	leastHold  = 10
	mostHold   = 60
	holdFactor = 4
)

// deadlocks distinguishes deadlocked servers from busy ones.
type deadlocks struct {
	longest int64 // milliseconds of the longest completed hold of any server
}

// suspects reports whether a server has held a lock for longer than work takes. The limit doubles each time that
// processes of this server index are given up while the job makes no progress.
func (d *deadlocks) suspects(j *job, o *observed, h words.Hold) bool {
	ticks := func(seconds float64) int64 { return int64(seconds / j.seconds) }
	most := ticks(min(max(leastHold, holdFactor*float64(d.longest)/1000), mostHold))
	return ticks(float64(h.Ms)/1000) > o.ear.Stretch(most, ticks(mostHold), j.minClock())
}

// Tick advances the time by one tick: silent processes become suspects.
func (c *Core) Tick() {
	c.job.watch.Pass()
	c.job.tick++
	if c.facts.Over() {
		return
	}
	c.rec.checkPartitions(&c.partitions)
	all := c.judge()
	for i := range c.job.servers {
		p, o := c.job.place(Server, i)
		if p.Process != "" && !o.gone && o.server != nil && c.deadlocks.suspects(c.job, o, o.server.Hold) &&
			o.ear.Accuse() {
			c.suspect(Server, i, o.server.Hold.String())
		}
	}
	if !c.job.watch.Deaf(all) {
		c.roster.suspendVacant()
		c.chains.giveUp()
	}
	c.afterTick()
}

// judge suspects processes that have been silent for too long, and returns all subjects.
func (c *Core) judge() []failuredetector.Subject {
	all := c.job.subjects()
	suspects, ask := c.job.watch.Suspects(all, c.job.minClock())
	at := func(subject int) (Kind, int) {
		if n := len(c.job.servers); subject >= n {
			return Worker, subject - n
		}
		return Server, subject
	}
	for _, i := range suspects {
		k, index := at(i)
		c.suspect(k, index, "has been silent for too long")
	}
	for _, i := range ask {
		k, index := at(i)
		p, o := c.job.place(k, index)
		c.rec.out.Inquiries = append(c.rec.out.Inquiries, Inquiry{k, index, p.PID, o.ear.Asked()})
	}
	return all
}

// LateTick advances the time by a tick during which the caller was not listening, because it was late or had not read
// its input. Such a tick does not count as silence.
func (c *Core) LateTick() {
	c.job.tick++
	if !c.facts.Over() {
		c.afterTick()
	}
}

func (c *Core) afterTick() {
	if c.cuts.times() && c.job.serves() {
		c.cuts.saveByTime()
	}
	c.reports.watchLog()
	c.chains.hurry()
	c.rounds.record()
	c.reconcile()
}

// Heard records that unread data has arrived from a process.
func (c *Core) Heard(k Kind, index int, process string) {
	if p, o := c.job.place(k, index); p.Process == process && !o.ear.Suspect() {
		_ = c.job.heard(o) // whether it counts does not matter here
	}
}

// suspect gives up a process that is silent or deadlocked; why says which. The process is killed, and a server's
// replicas are dropped if other servers have the rows. If it was alive all the time, it comes back without replicas. A
// server that may hold the last rows of a shard is not killed on suspicion: without a checkpoint, the job waits for it.
func (c *Core) suspect(k Kind, index int, why string) {
	_, o := c.job.place(k, index)
	if k == Server && c.job.irreplaceable() && c.job.last(index) {
		c.rec.event("suspected", target(k, index),
			"%s %s; no other server has all its rows, so the job waits for it", target(k, index), why)
	} else {
		c.rec.event("suspected", target(k, index), "%s %s; %s", target(k, index), why,
			upshot(c.job.unmanaged(k, index), k == Server))
		c.rec.kill(k, index)
	}
	if k == Server {
		if c.job.traits.Copies > 1 {
			c.job.recovering[k].Add(index)
		}
		c.rec.touchServer(index)
	}
	if !o.connected {
		// No supervisor will report its death: it belongs to another one, or died while this coordinator was down.
		c.rec.noticed(k, index, "it did not come back")
		o.assumed = true
		if k == Worker {
			c.vacate(index)
		}
	}
}
