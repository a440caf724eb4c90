package membership

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/saver"
)

// Where the strategy leaves the interval open there is none in clocks: every cut is named,
// as those are that somebody asks for, when package saver says that it is time.

// TickSeconds says how long a tick is, in seconds; 0.1 where it is not said.
func (c *Core) TickSeconds(s float64) { c.timer.SetTick(s) }

// comes returns how far the job has come, for the timer.
func (c *Core) comes() saver.Progress {
	working, _ := c.stand()
	return saver.Progress{Tick: c.tick, Working: working, Durable: c.facts.View.Durable}
}

// tookBack notes that rows are taken from a checkpoint since somebody died.
func (c *Core) tookBack() {
	if c.traits.Timed {
		s, told := c.timer.Failed(c.facts.Saving, c.comes(), c.facts.Job.MTBF)
		c.chose(s, told)
	}
}

// chose records the interval that was chosen, and tells people where it is another.
func (c *Core) chose(s perdure.Saving, told string) {
	c.facts.Saving, c.dirty = s, true
	if told != "" {
		c.event("interval", "", "%s", told)
	}
}

// saveByTime asks for a cut when it is time for one. It is called at every tick.
func (c *Core) saveByTime() {
	v := &c.facts.View
	if !c.traits.Timed || c.facts.Closing != nil || v.Pause || c.facts.Cutting {
		return
	}
	if v.Named > v.Durable && !c.missed() || !c.placed() || !c.Serving() {
		return // there could be none until the job goes on
	}
	at := c.comes()
	if c.timer.Due(c.facts.Saving, at) && c.cutFrom(at.Working) > v.Durable {
		c.facts.Cutting, c.dirty = true, true
	}
}

// measureSave takes over how long the shards say that their part of a checkpoint took: as
// long as the slowest of them.
func (c *Core) measureSave() {
	if !c.traits.Timed {
		return
	}
	took := 0.0
	for i := range c.facts.View.Shards {
		if st := c.shardStatus(i); st != nil {
			took = max(took, st.SaveSeconds)
		}
	}
	s, told := c.timer.Saved(c.facts.Saving, c.comes(), c.facts.Job.MTBF, took)
	c.chose(s, told)
}
