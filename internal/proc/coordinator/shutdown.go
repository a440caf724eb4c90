package coordinator

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// defaultLinger is how long a coordinator waits, at most, until all processes know that the job has ended.
const defaultLinger = 250 * time.Millisecond

// shutdown is the state of a job's end.
type shutdown struct {
	refusal  *wire.Refusal       // nil: the job has not ended
	deadline <-chan time.Time    // when the coordinator stops waiting for processes
	answered map[string]struct{} // the processes that this coordinator has answered
}

// startShutdown ends the job. All processes are notified, including those that reconnect now. The coordinator ends once
// all have disconnected.
func (c *Coordinator) startShutdown(why string) {
	if c.shutdown.refusal != nil {
		return
	}
	done := c.core.Record().View.Done
	c.shutdown.refusal, c.shutdown.deadline = &wire.Refusal{
		JobEnded: true, JobDone: done,
		Reason: "the job was ended: " + why,
	},
		time.After(c.cfg.Linger)
	c.refuseAll(*c.shutdown.refusal)
}

// allGone reports whether all processes that may be alive have received the end of the job and disconnected.
func (c *Coordinator) allGone() bool {
	for m := range c.members.all {
		if m != c.supervisor {
			return false
		}
	}
	if c.members.standbys.anyAlive(time.Now()) { // its next request is answered with the end of the job
		return false
	}
	record := c.core.Record()
	return c.answeredAll(membership.Server, record.Servers) && c.answeredAll(membership.Worker, record.Slots)
}

// answeredAll reports whether this coordinator has answered all processes in places, except dead ones.
func (c *Coordinator) answeredAll(k membership.Kind, places []membership.Member) bool {
	for i, p := range places {
		if _, met := c.shutdown.answered[p.Process]; !met && p.Process != "" &&
			c.core.MemberStatus(k, i).State != "dead" {
			return false
		}
	}
	return true
}

// refuseAll sends r to all members except the supervisor. They close their connections when they have read it. Closing
// here immediately could discard the message.
func (c *Coordinator) refuseAll(r wire.Refusal) {
	for m := range c.members.all {
		if m != c.supervisor {
			c.refuse(m, r)
		}
	}
}

// finishShutdown ends the loop if the job has ended and all processes have gone, or if it is too late to wait.
func (c *Coordinator) finishShutdown(late bool) {
	if c.endErr == nil && c.shutdown.refusal != nil && (late || c.allGone()) {
		c.endErr = perdure.ErrStopped
	}
}
