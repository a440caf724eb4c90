package membership

import "github.com/perdure/perdure/internal/core/silence"

// subjects returns all places, servers first, as those whose silence is judged.
func (c *Core) subjects() []silence.Subject {
	c.judged = c.judged[:0]
	for _, k := range []Kind{Server, Worker} {
		for i := range c.size(k) {
			p, o := c.place(k, i)
			speaks := k == Worker || !p.Left || len(c.held[i]) > 0
			if k == Worker { // told to wait, it has nothing to say
				sl := &c.facts.View.Slots[i]
				speaks = !sl.Left && (sl.Settled || !o.connected)
			}
			c.judged = append(c.judged, silence.Subject{
				Ear: &o.ear, There: p.Process != "" && !o.gone, Speaks: speaks, Redials: k == Worker,
			})
		}
	}
	return c.judged
}

// Tick lets time pass: silent processes become suspects.
func (c *Core) Tick() {
	c.watch.Pass()
	if !c.passes() {
		return
	}
	all := c.subjects()
	for _, i := range c.watch.Suspects(all, c.MinClock()) {
		if i < len(c.servers) {
			c.suspect(Server, i)
		} else {
			c.suspect(Worker, i-len(c.servers))
		}
	}
	if !c.watch.Deaf(all) {
		c.suspendVacant()
	}
	c.afterTick()
}

// LateTick lets time pass in which who asks this core did not listen, for it was late or
// had not read what came: that is nobody's silence.
func (c *Core) LateTick() {
	if c.passes() {
		c.afterTick()
	}
}

// passes lets a tick pass; false: nothing follows from it any more.
func (c *Core) passes() bool {
	c.tick++
	return !c.facts.View.Done && c.facts.Failed == ""
}

func (c *Core) afterTick() {
	c.saveByTime()
	c.watchLog()
	c.reconcile()
}

// Heard says that something has come from a place's process that was not read yet.
func (c *Core) Heard(k Kind, index int, process string) {
	if p, o := c.place(k, index); p.Process == process && !o.ear.Suspect() {
		c.heard(o)
	}
}

// suspect gives a silent process up: it is to be killed, and a server's replicas
// are dropped where others have the rows. Should it have been alive all the time,
// it comes back as a holder of nothing. Who may have the last rows of a shard is
// not killed on a suspicion, but waited for, where there is no checkpoint to go back to.
func (c *Core) suspect(k Kind, index int) {
	_, o := c.place(k, index)
	if k == Server && c.irreplaceable() && c.last(index) {
		c.event("suspected", target(k, index), "%s has been silent for too long; nobody else has all that it holds, so it is waited for", target(k, index))
	} else {
		c.event("suspected", target(k, index), "%s has been silent for too long; %s", target(k, index), c.upshot(k, index))
		c.kill(k, index)
	}
	if k == Server {
		if c.traits.Copies > 1 {
			c.healing[k].add(index)
		}
		c.lookAt(index)
	}
	if !o.connected {
		// Nobody to speak for it: a process of another parent, or one that died
		// while this coordinator was away.
		c.noticed(k, index, "it did not come back")
		o.assumed = true
		if k == Worker {
			c.vacate(index)
		}
	}
}

// kill asks for a suspect's certain end, once.
func (c *Core) kill(k Kind, index int) {
	p, o := c.place(k, index)
	if o.ear.GiveUp(c.MinClock()) {
		c.out.Kills = append(c.out.Kills, Kill{Kind: k, Index: index, Process: p.Process, PID: p.PID, Guest: c.guest(k, index)})
	}
}
