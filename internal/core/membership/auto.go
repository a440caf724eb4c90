package membership

import "fmt"

// Where the strategy says auto there is no interval in clocks: every cut is named, as
// those are that somebody asks for, when the time that SaveInterval gives has
// passed since the one before. So where cuts are depends on the machine; what the rows are at a
// clock does not.

const (
	usualTick = 0.1 // seconds
	// firstSaved is after how many clocks the first checkpoint is made, so that it is known
	// how long one takes.
	firstSaved = 2
	// leastSave is how long a checkpoint takes at least, in seconds, as far as is believed.
	leastSave = 1e-3
	// muchOff is by which factor the interval differs from the best one before it is
	// changed: it costs a twelfth more than the best one until then.
	muchOff = 1.5
)

// TickSeconds says how long a tick is, in seconds; 0.1 where it is not said.
func (c *Core) TickSeconds(s float64) { c.tickSeconds = s }

// ran returns how long the job has been going on, in seconds. What passed while there was
// no coordinator does not count.
func (c *Core) ran() float64 {
	return c.facts.Saving.Ran + float64(c.tick-c.ranAt)*c.tickSeconds
}

// tookBack notes that rows are taken from a checkpoint since somebody died.
func (c *Core) tookBack() {
	if !c.facts.Job.Recovery.Auto {
		return
	}
	c.facts.Saving.Failures++
	c.paceAt = 0 // clocks are done again
	c.chooseInterval()
}

// saveByTime asks for a cut when it is time for one. It is called at every tick.
func (c *Core) saveByTime() {
	v := &c.facts.View
	if !c.facts.Job.Recovery.Auto || c.facts.Closing != nil || v.Pause || c.facts.Cutting || v.Named > v.Durable && !c.missed() || !c.placed() || !c.Serving() {
		return // or there could be none until the job goes on
	}
	working, _ := c.stand()
	if c.paceAt == 0 && working > v.Durable {
		c.paceAt, c.paceClock = c.tick, working
	}
	due := working >= v.Durable+firstSaved
	if s := &c.facts.Saving; s.Interval > 0 {
		due = working > v.Durable && float64(c.tick-c.cutAt)*c.tickSeconds >= s.Interval
	}
	if due && c.cutFrom(working) > v.Durable {
		c.facts.Cutting, c.dirty = true, true
	}
}

// measureSave takes over how long the shards say that their part of a checkpoint took,
// the slowest of them, as a mean in which the newest one is a half.
func (c *Core) measureSave() {
	if !c.facts.Job.Recovery.Auto {
		return
	}
	save := leastSave
	for i := range c.facts.View.Shards {
		if st := c.shardStatus(i); st != nil {
			save = max(save, st.SaveSeconds)
		}
	}
	if c.save > 0 {
		save = (save + c.save) / 2
	}
	c.save = save
	c.chooseInterval()
}

// chooseInterval chooses the interval anew, and says so where it changes by much.
func (c *Core) chooseInterval() {
	s := &c.facts.Saving
	s.Ran, c.ranAt, c.dirty = c.ran(), c.tick, true
	if c.save == 0 {
		return // nothing was measured yet
	}
	mtbf, known := c.facts.Job.MTBF, "given"
	switch {
	case mtbf > 0:
	case s.Failures > 0:
		mtbf, known = ExpectedMTBF(s.Failures, s.Ran), fmt.Sprintf("assumed 1 in %s, seen %d in %s", Seconds(priorMTBF), s.Failures, Seconds(s.Ran))
	default:
		mtbf, known = ExpectedMTBF(0, s.Ran), "assumed, nothing has failed yet"
	}
	interval, why := SaveInterval(c.save, mtbf)
	switch much := s.Interval == 0 || interval >= s.Interval*muchOff || s.Interval >= interval*muchOff; {
	case interval == 0:
		return
	case !much && s.Interval < leastInterval*c.save:
		interval = s.Interval * muchOff // too much is saved; and saves vary
	case !much:
		return
	}
	s.Interval, s.Why = interval, why+" ("+known+")"
	about := ""
	if done, _ := c.stand(); c.paceAt > 0 && done > c.paceClock && c.tick > c.paceAt {
		clock := float64(c.tick-c.paceAt) * c.tickSeconds / float64(done-c.paceClock)
		about = fmt.Sprintf(", now about %d clocks", SaveClocks(interval, clock))
	}
	c.event("interval", "", "checkpoints every %s%s; %s", Seconds(interval), about, s.Why)
}
