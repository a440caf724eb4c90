package membership

import (
	"github.com/perdure/perdure/internal/core/failuredetector"
	"github.com/perdure/perdure/internal/core/words"
)

// A server that is at work holds the lock of a shard for as long as it applies a clock, makes progress, and sends
// heartbeats all the while. A deadlocked server sends them too. A server is taken for deadlocked when it has held one
// lock without progress for longer than holdFactor times the longest such hold that any server of the job has reported,
// but not before leastHold, and after mostHold in any case; all in seconds.
const (
	leastHold  = 10
	mostHold   = 60
	holdFactor = 4
)

// deadlocks tells deadlocked servers from busy ones.
type deadlocks struct {
	longest int64 // milliseconds for which any server has held a lock that it has let go of
}

// suspects reports whether a server has held a lock for longer than work takes. A place whose processes were given up
// while the job came no further gets twice as long each time.
func (d *deadlocks) suspects(j *job, o *observed, h words.Hold) bool {
	ticks := func(seconds float64) int64 { return int64(seconds / j.seconds) }
	most := ticks(min(max(leastHold, holdFactor*float64(d.longest)/1000), mostHold))
	return ticks(float64(h.Ms)/1000) > o.ear.Stretch(most, ticks(mostHold), j.minClock())
}

// Tick lets time pass: silent processes become suspects.
func (c *Core) Tick() {
	c.job.watch.Pass()
	c.job.tick++
	if c.facts.Over() {
		return
	}
	c.rec.lookForRifts(&c.rifts)
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

// LateTick lets time pass in which who asks this core did not listen, for it was late or
// had not read what came: that is nobody's silence.
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

// Heard says that something has come from a place's process that was not read yet.
func (c *Core) Heard(k Kind, index int, process string) {
	if p, o := c.job.place(k, index); p.Process == process && !o.ear.Suspect() {
		_ = c.job.heard(o) // whether it counts does not matter here
	}
}

// suspect gives up a process that is silent or deadlocked; why says which: it is to be killed, and a server's replicas
// are dropped where others have the rows. Should it have been alive all the time,
// it comes back as a holder of nothing. Who may have the last rows of a shard is
// not killed on a suspicion, but waited for, where there is no checkpoint to go back to.
func (c *Core) suspect(k Kind, index int, why string) {
	_, o := c.job.place(k, index)
	if k == Server && c.job.irreplaceable() && c.job.last(index) {
		c.rec.event("suspected", target(k, index),
			"%s %s; no other server has all that it holds, so the job waits for it", target(k, index), why)
	} else {
		c.rec.event("suspected", target(k, index), "%s %s; %s", target(k, index), why,
			upshot(c.job.guest(k, index), k == Server))
		c.rec.kill(k, index)
	}
	if k == Server {
		if c.job.traits.Copies > 1 {
			c.job.healing[k].Add(index)
		}
		c.rec.touchServer(index)
	}
	if !o.connected {
		// Nobody to speak for it: a process of another parent, or one that died
		// while this coordinator was away.
		c.rec.noticed(k, index, "it did not come back")
		o.assumed = true
		if k == Worker {
			c.vacate(index)
		}
	}
}
