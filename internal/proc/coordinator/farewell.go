package coordinator

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// usualLinger is how long a coordinator whose job is ended stays, at most, so that
// everybody hears it.
const usualLinger = 250 * time.Millisecond

// farewell is the end of a job, while it is told.
type farewell struct {
	why  *wire.Refusal       // nil: the job goes on
	late <-chan time.Time    // whoever has not heard it by then need not
	met  map[string]struct{} // the processes that this coordinator has answered
}

// end ends the job: everybody is told, also who comes back just then, and the
// coordinator ends when all have gone.
func (c *Coordinator) end(why string) {
	if c.bye.why != nil {
		return
	}
	done := c.core.Facts().View.Done
	c.bye.why, c.bye.late = &wire.Refusal{Over: true, Done: done, Reason: "the job was ended: " + why},
		time.After(c.cfg.Linger)
	c.dismiss(*c.bye.why)
}

// heard reports whether everybody who may live has heard that the job is ended, and has gone.
func (c *Coordinator) heard() bool {
	for m := range c.crew.members {
		if m != c.supervisor {
			return false
		}
	}
	facts := c.core.Facts()
	return c.metAll(membership.Server, facts.Servers) && c.metAll(membership.Worker, facts.Slots)
}

// metAll reports whether this coordinator has answered all processes of some places but
// for those that are dead.
func (c *Coordinator) metAll(k membership.Kind, places []membership.Place) bool {
	for i, p := range places {
		if _, met := c.bye.met[p.Process]; !met && p.Process != "" && c.core.Condition(k, i).State != "dead" {
			return false
		}
	}
	return true
}

// dismiss ends the connections to all but the supervisor. They close when they have read
// why: who closed here at once might take the word back.
func (c *Coordinator) dismiss(r wire.Refusal) {
	for m := range c.crew.members {
		if m != c.supervisor {
			c.refuse(m, r)
		}
	}
}

// ending ends the loop, once the job is ended and everybody has heard it.
func (c *Coordinator) ending(late bool) {
	if c.ended == nil && c.bye.why != nil && (late || c.heard()) {
		c.ended = perdure.ErrStopped
	}
}
