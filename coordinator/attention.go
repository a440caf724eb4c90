package coordinator

import "time"

// attention says whether the loop has listened since its last tick. Who has not cannot
// say of anybody that it was silent.
type attention struct {
	every    time.Duration // a tick
	last     time.Time     // when the last one was handled
	caughtUp bool          // since then all that had come was read at some time
}

// lateTicks is how many ticks late the loop may be and still have listened: a tick
// counts as one, however late.
const lateTicks = 2

// listened reports, at a tick, whether the loop listened since the one before.
func (a *attention) listened(now time.Time, unread int) bool {
	listened := (a.caughtUp || unread == 0) && (a.last.IsZero() || now.Sub(a.last) <= (1+lateTicks)*a.every)
	a.last, a.caughtUp = now, false
	return listened
}

// reads notes how many messages wait.
func (a *attention) reads(unread int) { a.caughtUp = a.caughtUp || unread == 0 }

// tick lets time pass. Whose messages wait, or have come and cannot be handed over, was
// heard.
func (c *Coordinator) tick(now time.Time) {
	for m := range c.members {
		if len(m.unread) > 0 && m.place() {
			c.core.Heard(m.kind(), m.index, m.hello.Process)
		}
	}
	if c.attention.listened(now, len(c.inbox)) {
		c.core.Tick()
	} else {
		c.core.LateTick()
	}
}
