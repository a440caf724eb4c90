// Package hearing counts for how long a worker has heard no process of its job. Nobody is left to say so when all
// are gone. A Hearing's Note may be called concurrently with all else.
package hearing

import (
	"sync/atomic"
	"time"
)

// SilentTicks is how many times in its patience a worker looks whether somebody was
// heard. AsksEvery is after how many of them in silence it asks, and asks again.
const (
	SilentTicks = 12
	AsksEvery   = 3
)

// Hearing counts the time in which a client listened and heard nobody. It counts its own
// looks and not the clock: what comes while a process is frozen it reads when it thaws.
type Hearing struct {
	heard  atomic.Bool // since the last look
	silent int         // looks since somebody was heard
	since  time.Time   // of the last look at which somebody had been
	looked time.Time   // of the last look
}

// Note notes that a process of the job was heard.
func (h *Hearing) Note() {
	if !h.heard.Load() { // it is so nearly always: the line of memory is not taken from others
		h.heard.Store(true)
	}
}

// Look counts a look, which is one every so often, and returns for how many nobody has
// been heard. One that comes late says nothing: this process did not run, or not enough.
func (h *Hearing) Look(now time.Time, every time.Duration) (silent int) {
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
func (h *Hearing) Since() time.Time { return h.since }
