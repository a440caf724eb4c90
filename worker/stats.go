package worker

import (
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/absence"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/core/reads"
)

// stats are counted since the client's start.
type stats struct {
	samples int64

	began       time.Time // of the first read
	over        time.Time // when the program had done its last clock; zero: it has not
	stale, comm time.Duration
}

// snapshot returns all that is counted, with what the cores count.
func (s *stats) snapshot(
	now time.Time, read *reads.Stats, made outbox.Counters, out *absence.Watch,
) perdure.WorkerCounters {
	w := perdure.WorkerCounters{
		UpdatesSent: made.Updates, BytesPushed: made.Pushed, BytesPulled: read.Pulled,
		Samples: s.samples, BeyondBound: made.Beyond,
		ClockDifferential: read.Differential.Counts(), ReadLag: read.Lag.Counts(),
		MissingUpdates: read.Missing.Counts(),
		OutageClocks:   out.Clocks, StaleRows: read.Beyond, QueuedBytes: out.Queued, OutageNs: out.Waited,
		StalenessNs: int64(s.stale), CommNs: int64(s.comm),
	}
	if !s.over.IsZero() {
		now = s.over
	}
	if !s.began.IsZero() {
		w.ComputeNs = max(0, int64(now.Sub(s.began)-s.stale-s.comm))
	}
	return w
}

// blocked counts the time since begin, in which a read waited: as far as a server
// held the answer back, or a push had nothing to come for, for others to end their
// clocks; else for messages.
func (s *stats) blocked(begin time.Time, call *reads.Call) {
	if s.began.IsZero() {
		return
	}
	all := time.Since(begin)
	held, pushed, late := call.Waited()
	stale := min(all, time.Duration(held)*time.Microsecond)
	if pushed {
		stale = max(stale, all-time.Duration(late)*time.Microsecond)
	}
	s.stale += stale
	s.comm += all - stale
}

// clocked counts the time since begin, in which a clock was ended, as far as it was
// not waiting counted beyond stale.
func (s *stats) clocked(begin time.Time, stale time.Duration) {
	if !s.began.IsZero() {
		s.comm += max(0, time.Since(begin)-(s.stale-stale)) // other goroutines may have waited meanwhile
	}
}

// AddSamples counts training samples that the program has worked through.
func (c *Client) AddSamples(n int) {
	l := c.lock()
	defer c.mu.Unlock()
	l.stats.samples += int64(n)
}
