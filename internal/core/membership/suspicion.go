package membership

import "github.com/perdure/perdure/internal/core/verdict"

// Tick lets time pass: silent processes become suspects.
func (c *Core) Tick() {
	c.job.watch.Pass()
	c.job.tick++
	if c.facts.Over() {
		return
	}
	c.rec.lookForRifts(&c.rifts)
	all := c.job.subjects()
	for _, i := range c.job.watch.Suspects(all, c.job.minClock()) {
		if i < len(c.job.servers) {
			c.suspect(Server, i)
		} else {
			c.suspect(Worker, i-len(c.job.servers))
		}
	}
	if !c.job.watch.Deaf(all) {
		c.roster.suspendVacant()
		c.chains.giveUp()
	}
	c.afterTick()
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

// suspect gives a silent process up: it is to be killed, and a server's replicas
// are dropped where others have the rows. Should it have been alive all the time,
// it comes back as a holder of nothing. Who may have the last rows of a shard is
// not killed on a suspicion, but waited for, where there is no checkpoint to go back to.
func (c *Core) suspect(k Kind, index int) {
	_, o := c.job.place(k, index)
	if k == Server && c.job.irreplaceable() && c.job.last(index) {
		c.rec.event("suspected", target(k, index),
			"%s has been silent for too long; nobody else has all that it holds, so it is waited for", target(k, index))
	} else {
		c.rec.event("suspected", target(k, index), "%s has been silent for too long; %s", target(k, index),
			verdict.Upshot(c.job.guest(k, index), k == Server))
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
