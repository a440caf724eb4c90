package membership

import (
	"strings"

	"github.com/perdure/perdure/internal/core/words"
)

// logPatience is for how many ticks somebody may wait for the update log until people
// are told: one that ends is there again sooner, and its parent tells of that.
const logPatience = 10

// reports tells people of what works again.
type reports struct {
	facts *Facts
	job   *job
	rec   *record
	owed  bool   // people are to be told once all shards serve, of which some were dropped
	waits int64  // the tick from which on somebody has waited for the update log, or the store; 0: nobody does
	told  string // people were told that somebody waits for it: log or store; "": they were not
}

// healed reports the places that work again after a failure.
func (re *reports) healed() {
	v := &re.facts.View
	for _, i := range re.job.healing[Server].Sorted() {
		if o := &re.job.servers[i]; re.job.serving(i) {
			re.job.healing[Server].Remove(i)
			how := "serves again"
			if o.gone || o.ear.Suspect() {
				how = "is not missed any more: the others serve all shards"
			}
			re.rec.event("serving", target(Server, i), "server:%d %s", i, how)
		}
	}
	if re.owed && len(re.job.dropped) == 0 && re.job.serves() {
		re.owed = false
		re.rec.event("serving", "shards", "all shards serve again")
	}
	for _, i := range re.job.healing[Worker].Sorted() {
		if o := &re.job.slots[i]; !o.gone && o.connected && re.facts.Slots[i].Process != "" && v.Slots[i].Settled {
			re.job.healing[Worker].Remove(i)
			re.rec.event("serving", target(Worker, i), "worker:%d works again from clock %d", i, v.Slots[i].Start)
		}
	}
}

// watchLog tells people, once, that updates wait for the update log, or a slot's state for the store, and that they
// go on.
func (re *reports) watchLog() {
	why := re.job.logProblem()
	switch {
	case why != "" && re.waits == 0:
		re.waits = re.job.tick
	case why != "" && re.told == "" && re.job.tick-re.waits >= logPatience:
		if text, stores := strings.CutPrefix(why, words.StoreWaits); stores {
			re.told = "store"
			re.rec.event("trouble", re.told, "a worker waits, and goes on by itself when it can: %s", text)
		} else {
			re.told = "log"
			re.rec.event("trouble", re.told, "updates wait, and go on by themselves when they can: %s", why)
		}
	case why == "" && re.told == "log":
		re.rec.event("serving", "log", "updates go to the log again")
		re.waits, re.told = 0, ""
	case why == "" && re.told == "store":
		re.rec.event("serving", "store", "no worker waits for the store any more")
		re.waits, re.told = 0, ""
	case why == "":
		re.waits, re.told = 0, ""
	}
}
