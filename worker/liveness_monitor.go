package worker

import (
	"sync/atomic"
	"time"
)

// maxSilentChecks is how often within Config.LostAfter a client checks for messages. After every pingEvery checks
// without one it pings all processes.
const (
	maxSilentChecks = 12
	pingEvery       = 3
)

// livenessMonitor measures how long a client has received nothing from any process of its job. It counts checks
// instead of time: while the process is frozen, no check takes place, and messages that arrive meanwhile are read after
// it resumes. RecordMessage may be called concurrently with all other methods.
type livenessMonitor struct {
	received  atomic.Bool // a message arrived since the last check
	numSilent int         // successive checks without a message
	since     time.Time   // time of the last check with a message
	lastCheck time.Time   // time of the last check
}

// RecordMessage records a message from a process of the job.
func (h *livenessMonitor) RecordMessage() {
	if !h.received.Load() { // nearly always set: avoids taking the cache line from other cores
		h.received.Store(true)
	}
}

// Check counts a check, which takes place at the given interval, and returns the number of successive checks without a
// message. A late check does not count: this process was not running, or not enough.
func (h *livenessMonitor) Check(now time.Time, every time.Duration) (silent int) {
	late := !h.lastCheck.IsZero() && now.Sub(h.lastCheck) > 2*every
	h.lastCheck = now
	switch {
	case h.received.Swap(false) || h.since.IsZero():
		h.numSilent, h.since = 0, now
	case !late:
		h.numSilent++
	}
	return h.numSilent
}

// Since returns the time of the last check that found a message.
func (h *livenessMonitor) Since() time.Time { return h.since }
