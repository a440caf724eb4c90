package membership

// A pulse learns how regularly a process is heard, and from that how long a
// silence may be before it tells something: four times the usual interval and
// eight times its usual deviation, as means of about the last eight and four, but
// never less than two thirds of the patience or more than four times it. So of
// heartbeats every tick and a patience of 15 ticks (1.5 s) come 10 ticks (1 s), on
// a machine where they come anyhow, as late as 0.7 s, up to 60 ticks (6 s). All are
// 1/16 ticks. The zero pulse has heard nothing yet, and allows the patience itself.
type pulse struct {
	interval, deviation int64
}

const pulseUnit = 16

// heard notes an interval of so many ticks between two signs of life. What comes
// within one tick is one sign.
func (p *pulse) heard(ticks int64, patience int64) {
	if ticks <= 0 {
		return
	}
	if p.interval == 0 {
		p.interval, p.deviation = pulseUnit*patience/8, pulseUnit*patience/16
	}
	off := ticks*pulseUnit - p.interval
	p.interval = max(1, p.interval+off/8)
	p.deviation += (max(off, -off) - p.deviation) / 4
}

// allows returns the silence, in ticks, after which a process is suspected.
func (p *pulse) allows(patience int64) int64 {
	if p.interval == 0 {
		return patience
	}
	return min(max((4*p.interval+8*p.deviation)/pulseUnit, (2*patience+2)/3), 4*patience)
}

// deaf reports whether nobody at all, of three or more, has been heard for a third of
// the patience: most likely it is the coordinator that is cut off. It then suspects
// nobody, for up to four times the patience.
func (c *Core) deaf() bool {
	silent := c.tick - c.heardTick
	if silent <= c.patience/3 || silent >= 4*c.patience {
		return false
	}
	there := 0
	for _, k := range []Kind{Server, Worker} {
		for i := range c.size(k) {
			if p, o := c.place(k, i); p.Process != "" && !o.gone && !o.suspect {
				there++
			}
		}
	}
	return there >= 3
}

// hears ends a time in which nobody was heard: the others were not silent either, as
// far as can be known.
func (c *Core) hears() {
	if c.tick > c.heardTick && c.deaf() {
		for _, all := range [][]observed{c.servers, c.slots} {
			for i := range all {
				all[i].heardTick = c.tick
			}
		}
	}
	c.heardTick = c.tick
}

// Tick lets time pass: silent processes become suspects.
func (c *Core) Tick() {
	c.tick++
	if c.facts.View.Done || c.facts.Failed != "" || c.deaf() {
		return
	}
	for _, k := range []Kind{Server, Worker} {
		var suspects []int
		for i := range c.size(k) {
			p, o := c.place(k, i)
			if p.Process == "" || o.gone || o.suspect || k == Server && p.Left && len(c.held[i]) == 0 || c.tick-o.heardTick < o.pulse.allows(c.patience) {
				continue
			}
			if k == Worker && (o.connected && !c.facts.View.Slots[i].Settled || c.facts.View.Slots[i].Left) {
				continue // told to wait, it has nothing to say
			}
			o.suspect = true
			suspects = append(suspects, i)
		}
		for _, i := range suspects {
			c.suspect(k, i)
		}
	}
	c.suspendVacant()
	c.saveByTime()
	c.watchLog()
	c.reconcile()
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
		c.event("suspected", target(k, index), "%s has been silent for too long; it is killed and replaced", target(k, index))
		c.kill(k, index)
	}
	if k == Server {
		if c.facts.Job.Recovery.Copies() > 1 {
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
	if !o.killed {
		o.killed = true
		c.out.Kills = append(c.out.Kills, Kill{Kind: k, Index: index, Process: p.Process, PID: p.PID})
	}
}
