package membership

// logWaits is what is known of those who wait for the update log.
type logWaits struct {
	since int64 // the tick of which on somebody has waited; 0: nobody does
	told  bool  // that somebody waits
}

// logPatience is for how many ticks somebody may wait for the update log until people
// are told: one that ends is there again sooner, and its parent tells of that.
const logPatience = 10

// watchLog tells people, once, that updates wait for the update log, and that they go on.
func (c *Core) watchLog() {
	if !c.traits.Logged() {
		return
	}
	why, w := c.logProblem(), &c.logWaits
	switch {
	case why != "" && w.since == 0:
		w.since = c.tick
	case why != "" && !w.told && c.tick-w.since >= logPatience:
		w.told = true
		c.event("trouble", "log", "updates wait, and go on by themselves when they can: %s", why)
	case why == "" && w.told:
		c.event("serving", "log", "updates go to the log again")
		*w = logWaits{}
	case why == "":
		*w = logWaits{}
	}
}

// logProblem returns why one of the live processes waits for the update log, "" if none
// does.
func (c *Core) logProblem() string {
	for _, k := range []Kind{Server, Worker} {
		for i := range c.size(k) {
			_, o := c.place(k, i)
			switch {
			case o.gone || o.ear.Suspect() || !o.connected:
			case o.server != nil && o.server.Log != "":
				return o.server.Log
			case o.worker != nil && o.worker.Log != "":
				return o.worker.Log
			}
		}
	}
	return ""
}
