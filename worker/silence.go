package worker

import (
	"sync/atomic"
	"time"
)

// silentTicks is how many times in its patience a worker looks whether somebody was
// heard. asksEvery is after how many of them in silence it asks, and asks again.
const (
	silentTicks = 12
	asksEvery   = 3
)

// coordinatorHearing counts the time in which a client listened and heard no process of its job. It counts its
// own looks and not the clock: what comes while a process is frozen it reads when it thaws. Note may be called
// concurrently with all else.
type coordinatorHearing struct {
	heard  atomic.Bool // since the last look
	silent int         // looks since somebody was heard
	since  time.Time   // of the last look at which somebody had been
	looked time.Time   // of the last look
}

// Note notes that a process of the job was heard.
func (h *coordinatorHearing) Note() {
	if !h.heard.Load() { // it is so nearly always: the line of memory is not taken from others
		h.heard.Store(true)
	}
}

// Look counts a look, which is one every so often, and returns for how many nobody has
// been heard. One that comes late says nothing: this process did not run, or not enough.
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

// Since returns when somebody was heard last, as far as looks tell.
func (h *coordinatorHearing) Since() time.Time { return h.since }
