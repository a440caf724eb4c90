package membership

import (
	"github.com/perdure/perdure/internal/core/protocol"
)

// logPatience is how many ticks a process may wait for the update log before users are notified. An update log that has
// ended is back sooner, and its supervisor reports that.
const logPatience = 10

// reports notifies users when processes and shards work again.
type reports struct {
	record  *JobRecord
	job     *jobState
	rec     *recorder
	pending bool // a message is due once all shards serve again after some were dropped
	waits   protocol.WaitTracker
}

// recovered reports the servers and slots that work again after a failure.
func (re *reports) recovered() {
	v := &re.record.View
	for _, i := range re.job.recovering[Server].Sorted() {
		if o := &re.job.servers[i]; re.job.shardsServed(i) {
			re.job.recovering[Server].Remove(i)
			how := "serves again"
			if o.gone || o.liveness.IsSuspect() {
				how = "is no longer needed: the other servers serve all shards"
			}
			re.rec.event("serving", target(Server, i), "server:%d %s", i, how)
		}
	}
	if re.pending && len(re.job.dropped) == 0 && re.job.isServing() {
		re.pending = false
		re.rec.event("serving", "shards", "all shards serve again")
	}
	for _, i := range re.job.recovering[Worker].Sorted() {
		if o := &re.job.slots[i]; !o.gone && o.connected && re.record.Slots[i].Process != "" && v.Slots[i].Settled {
			re.job.recovering[Worker].Remove(i)
			re.rec.event("serving", target(Worker, i), "worker:%d resumes at clock %d", i, v.Slots[i].Start)
		}
	}
}

// watchLog notifies users, once, that updates wait for the update log or a slot's state for the store, and again when
// they continue.
func (re *reports) watchLog() {
	if kind, target, text := re.waits.Observe(re.job.tick, logPatience, re.job.logProblem()); kind != "" {
		re.rec.event(kind, target, "%s", text)
	}
}
