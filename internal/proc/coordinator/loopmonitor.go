package coordinator

import (
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/wire"
)

// loopMonitor records whether the loop has kept up with its messages since its last tick. If it has not, it cannot tell
// which processes have been silent.
type loopMonitor struct {
	every    time.Duration // interval between ticks
	last     time.Time     // when the last one was handled
	caughtUp bool          // since last, the inbox was empty at some time
	lag
}

// lateTicks is how many ticks late the loop may be and still have kept up. A late tick counts as one.
const lateTicks = 2

// keptUp reports, at a tick, whether the loop has kept up since the previous tick.
func (a *loopMonitor) keptUp(now time.Time, unread int) bool {
	listened := (a.caughtUp || unread == 0) && (a.last.IsZero() || now.Sub(a.last) <= (1+lateTicks)*a.every)
	a.last, a.caughtUp = now, false
	return listened
}

// recordUnread records how many messages are waiting.
func (a *loopMonitor) recordUnread(unread int) { a.caughtUp = a.caughtUp || unread == 0 }

// noteUnread reports processes with unread messages to the core as alive.
func (w *memberSet) noteUnread(core *membership.Core) {
	for m := range w.all {
		if m.unread.messages.Load() > 0 && m.holdsID() {
			core.DataReceived(m.kind(), m.index, m.hello.Process)
		}
	}
}

// tick advances the core's time.
func (c *Coordinator) tick(now time.Time) {
	c.members.noteUnread(c.core)
	listened := c.monitor.keptUp(now, len(c.inbox))
	if listened {
		c.core.Tick()
	} else {
		c.core.LateTick()
	}
	if text := c.monitor.note(now, listened, len(c.inbox)); text != "" {
		c.emit(membership.Event{Kind: "behind", Target: string(wire.RoleCoordinator), Text: text})
	}
}

// lag measures for how long the loop has not kept up. A job with an overloaded coordinator keeps training, but no
// silent process is detected, so the user is notified.
type lag struct {
	since    time.Time // the first tick at which the loop had not kept up; zero if it has
	reported time.Time // when the user was last notified; zero if never
}

// The user is notified after a lag of lagTold, and again every lagAgain.
const (
	lagTold  = 10 * time.Second
	lagAgain = time.Minute
)

// note records, at a tick, whether the loop has kept up. It returns a message for the user, or "".
func (l *lag) note(now time.Time, listened bool, unread int) (text string) {
	switch {
	case listened && !l.reported.IsZero():
		text = fmt.Sprintf("the coordinator has caught up after %v; failure detection has resumed", l.lasts(now))
		fallthrough
	case listened:
		*l = lag{}
	case l.since.IsZero():
		l.since = now
	case now.Sub(l.since) >= lagTold && now.Sub(l.reported) >= lagAgain:
		l.reported = now
		text = fmt.Sprintf("the coordinator has been overloaded for %v: %d messages are waiting; "+
			"failure detection resumes when it has caught up; "+
			"use fewer workers, servers or shards, more cores or a faster disk", l.lasts(now), unread)
	}
	return text
}

func (l *lag) lasts(now time.Time) time.Duration { return now.Sub(l.since).Round(time.Second) }
