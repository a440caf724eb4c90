package coordinator

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// defaultLinger is how long a coordinator waits, at most, until all processes know that the job has ended.
const defaultLinger = 250 * time.Millisecond

// farewell is the state of a job's end.
type farewell struct {
	why  *wire.Refusal       // nil: the job has not ended
	late <-chan time.Time    // when the coordinator stops waiting for processes
	met  map[string]struct{} // the processes that this coordinator has answered
}

// end ends the job. All processes are notified, including those that reconnect now. The coordinator ends once all have
// disconnected.
func (c *Coordinator) end(why string) {
	if c.farewell.why != nil {
		return
	}
	done := c.core.Record().View.Done
	c.farewell.why, c.farewell.late = &wire.Refusal{JobEnded: true, JobDone: done, Reason: "the job was ended: " + why},
		time.After(c.cfg.Linger)
	c.dismiss(*c.farewell.why)
}

// allGone reports whether all processes that may be alive have received the end of the job and disconnected.
func (c *Coordinator) allGone() bool {
	for m := range c.crew.members {
		if m != c.supervisor {
			return false
		}
	}
	facts := c.core.Record()
	return c.metAll(membership.Server, facts.Servers) && c.metAll(membership.Worker, facts.Slots)
}

// metAll reports whether this coordinator has answered all processes in places, except dead ones.
func (c *Coordinator) metAll(k membership.Kind, places []membership.Member) bool {
	for i, p := range places {
		if _, met := c.farewell.met[p.Process]; !met && p.Process != "" && c.core.MemberStatus(k, i).State != "dead" {
			return false
		}
	}
	return true
}

// dismiss sends r to all members except the supervisor. They close their connections when they have read it. Closing
// here immediately could discard the message.
func (c *Coordinator) dismiss(r wire.Refusal) {
	for m := range c.crew.members {
		if m != c.supervisor {
			c.refuse(m, r)
		}
	}
}

// ending ends the loop if the job has ended and all processes have gone, or if it is too late to wait.
func (c *Coordinator) ending(late bool) {
	if c.ended == nil && c.farewell.why != nil && (late || c.allGone()) {
		c.ended = perdure.ErrStopped
	}
}
