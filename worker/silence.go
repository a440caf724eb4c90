package worker

import (
	"sync/atomic"
	"time"
)

// silentTicks is how often within Config.LostAfter a client checks for messages. After every asksEvery checks without
// one it pings all processes.
const (
	silentTicks = 12
	asksEvery   = 3
)

// coordinatorHearing measures how long a client has received nothing from any process of its job. It counts checks
// instead of time: while the process is frozen, no check takes place, and messages that arrive meanwhile are read after
// it resumes. Note may be called concurrently with all other methods.
type coordinatorHearing struct {
	heard  atomic.Bool // a message arrived since the last check
	silent int         // successive checks without a message
	since  time.Time   // time of the last check with a message
	looked time.Time   // time of the last check
}

// Note records a message from a process of the job.
func (h *coordinatorHearing) Note() {
	if !h.heard.Load() { // nearly always set: avoids taking the cache line from other cores
		h.heard.Store(true)
	}
}

// Look counts a check, which takes place at the given interval, and returns the number of successive checks without a
// message. A late check does not count: this process was not running, or not enough.
func (h *coordinatorHearing) Look(now time.Time, every time.Duration) (silent int) {
	late := !h.looked.IsZero() && now.Sub(h.looked) > 2*every
	h.looked = now
	switch {
	case h.heard.Swap(false) || h.since.IsZero():
		h.silent, h.since = 0, now
	case !late:
		h.silent++
	}
	return h.silent
}

// Since returns the time of the last check that found a message.
func (h *coordinatorHearing) Since() time.Time { return h.since }
