package membership

import (
	"slices"

	"github.com/perdure/perdure"
)

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

// What a process may take beyond the patience, in patiences.
const (
	mostStarting = 20 // until its first status, once it was let in: it may have much to load
	mostBackOff  = 20 // where it was given up before, and the job has come no further since
)

// backOff is how often a place's process was given up as silent while the job came no
// further: each time it is waited for twice as long. If the job cannot go on without it,
// it was given up too soon, and its successors would be too.
type backOff struct {
	times int
	clock perdure.Clock // of the job, at the last time
}

// struck notes that the place's process was given up when the job was at a clock.
func (b *backOff) struck(clock perdure.Clock) {
	if clock > b.clock {
		b.times = 0
	}
	b.times, b.clock = b.times+1, clock
}

// stretch makes a silence longer, by how often its like was too long.
func (b *backOff) stretch(silence, most int64, clock perdure.Clock) int64 {
	if b.times == 0 || clock > b.clock {
		return silence
	}
	return max(silence, min(silence<<min(b.times, 16), most))
}

// allows returns the silence, in ticks, after which the process of a place is suspected. A
// worker that waits for its slot may give its connection up, and dial again: it is starting all
// the while. A server whose connection broke before its first status is
// most likely dead, and shards wait for its place.
func (c *Core) allows(k Kind, o *observed) int64 {
	silence := o.pulse.allows(c.patience)
	if o.starting && (o.connected || k == Worker) {
		silence = mostStarting * c.patience
	}
	return o.strikes.stretch(silence, mostBackOff*c.patience, c.MinClock())
}

// deaf reports whether nobody at all, of three or more, has been heard for a third of
// the patience: most likely it is the coordinator that is cut off. It then suspects
// nobody, for up to four times the patience.
func (c *Core) deaf() bool {
	silent := c.listened - c.heardTick
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
	if c.listened > c.heardTick && c.deaf() {
		for _, all := range [][]observed{c.servers, c.slots} {
			for i := range all {
				all[i].heardTick = c.listened
			}
		}
	}
	c.heardTick = c.listened
}

// Tick lets time pass: silent processes become suspects.
func (c *Core) Tick() {
	c.listened++
	if !c.passes() {
		return
	}
	if !c.deaf() {
		accused := c.accused()
		for _, a := range accused {
			_, o := c.place(a.kind, a.index)
			o.suspect = true
		}
		for _, a := range accused {
			c.suspect(a.kind, a.index)
		}
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
	if p, o := c.place(k, index); p.Process == process && !o.suspect {
		c.heard(o)
	}
}

// accusation names a process that was silent for too long.
type accusation struct {
	kind  Kind
	index int
}

// accused returns the processes that become suspects now. Where several are quiet at
// once, and these are a share of all, what they have in common is most likely a machine
// that is busy, or this core: it suspects itself first, and accuses them only if that is
// so for another patience. One whose connection is broken is not in doubt.
func (c *Core) accused() []accusation {
	var silent []accusation
	there, quiet := 0, 0
	for _, k := range []Kind{Server, Worker} {
		for i := range c.size(k) {
			p, o := c.place(k, i)
			if p.Process == "" || o.gone || o.suspect || k == Server && p.Left && len(c.held[i]) == 0 {
				continue
			}
			if k == Worker && (o.connected && !c.facts.View.Slots[i].Settled || c.facts.View.Slots[i].Left) {
				continue // told to wait, it has nothing to say
			}
			there++
			silence, allowed := c.listened-o.heardTick, c.allows(k, o)
			if !o.broken && 2*silence > allowed {
				quiet++
			}
			if silence >= allowed {
				silent = append(silent, accusation{k, i})
			}
		}
	}
	switch common := quiet > 1 && quiet*commonShare >= there; {
	case len(silent) == 0 || !common:
		c.doubtful = 0
		return silent
	case c.doubtful == 0:
		c.doubtful = c.listened
	}
	if c.listened-c.doubtful >= c.patience {
		return silent
	}
	return slices.DeleteFunc(silent, func(a accusation) bool {
		_, o := c.place(a.kind, a.index)
		return !o.broken
	})
}

// commonShare is the share of all processes that have to be quiet at once, one in so
// many, for the core to suspect itself first.
const commonShare = 8

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
	if !o.killed {
		o.killed = true
		o.strikes.struck(c.MinClock())
		c.out.Kills = append(c.out.Kills, Kill{Kind: k, Index: index, Process: p.Process, PID: p.PID, Guest: c.guest(k, index)})
	}
}
