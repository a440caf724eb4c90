package coordinator

import (
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// attention says whether the loop has listened since its last tick. Who has not cannot
// say of anybody that it was silent.
type attention struct {
	every    time.Duration // a tick
	last     time.Time     // when the last one was handled
	caughtUp bool          // since then all that had come was read at some time
	lag
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

// hearUnread tells the core who was heard: whose messages wait, or have come and cannot be handed over.
func (w *crew) hearUnread(core *membership.Core) {
	for m := range w.members {
		if m.unread.messages.Load() > 0 && m.place() {
			core.Heard(m.kind(), m.index, m.hello.Process)
		}
	}
}

// tick lets time pass.
func (c *Coordinator) tick(now time.Time) {
	c.crew.hearUnread(c.core)
	listened := c.attention.listened(now, len(c.inbox))
	if listened {
		c.core.Tick()
	} else {
		c.core.LateTick()
	}
	if text := c.attention.note(now, listened, len(c.inbox)); text != "" {
		c.tell(membership.Event{Kind: "behind", Target: string(wire.RoleCoordinator), Text: text})
	}
}

// lag is how long the loop has not listened at all. A job whose coordinator is behind for
// good goes on, but nobody who is silent is noticed in it, so people are told.
type lag struct {
	since time.Time // of the first tick at which it had not; zero: it has
	said  time.Time // when that was told last; zero: it was not
}

// After lagTold of it people are told, and again every lagAgain.
const (
	lagTold  = 10 * time.Second
	lagAgain = time.Minute
)

// note notes whether the loop has listened, at a tick, and returns what is to be told of that;
// "": nothing.
func (l *lag) note(now time.Time, listened bool, unread int) (text string) {
	switch {
	case listened && !l.said.IsZero():
		text = fmt.Sprintf("the coordinator has caught up, after %v; silence is judged again", l.lasts(now))
		fallthrough
	case listened:
		*l = lag{}
	case l.since.IsZero():
		l.since = now
	case now.Sub(l.since) >= lagTold && now.Sub(l.said) >= lagAgain:
		l.said = now
		text = fmt.Sprintf("the coordinator has been behind for %v: %d messages wait; "+
			"silence is judged again once it has caught up; "+
			"fewer workers, servers or shards, more cores or a faster disk help", l.lasts(now), unread)
	}
	return text
}

func (l *lag) lasts(now time.Time) time.Duration { return now.Sub(l.since).Round(time.Second) }
