package worker

import (
	"time"

	"github.com/perdure/perdure"
)

// histogram counts whole numbers, small ones without allocating.
type histogram struct {
	near [257]int64 // -128 … 128
	far  map[int64]int64
}

func (h *histogram) add(v perdure.Clock, n int64) {
	if v >= -128 && v <= 128 {
		h.near[v+128] += n
		return
	}
	if h.far == nil {
		h.far = map[int64]int64{}
	}
	if len(h.far) < 1024 || h.far[int64(v)] > 0 {
		h.far[int64(v)] += n
	}
}

func (h *histogram) counts() map[int64]int64 {
	out := map[int64]int64{}
	for i, n := range h.near {
		if n > 0 {
			out[int64(i)-128] = n
		}
	}
	for v, n := range h.far {
		out[v] = n
	}
	return out
}

// stats are counted since the client's start; Client.mu guards them.
type stats struct {
	sent, pushed, pulled, samples int64
	beyond                        int64 // updates that alone exceeded vap's bound
	staleRows, outageClocks       int64 // while a shard was out
	queued                        int64 // bytes at most for shards that were
	outageWait                    time.Duration
	differential, lag, missing    *histogram

	began       time.Time // of the first read
	over        time.Time // when the program had done its last clock; zero: it has not
	stale, comm time.Duration
}

func (s *stats) init() { s.differential, s.lag, s.missing = &histogram{}, &histogram{}, &histogram{} }

func (s *stats) snapshot(now time.Time) perdure.WorkerCounters {
	w := perdure.WorkerCounters{
		UpdatesSent: s.sent, BytesPushed: s.pushed, BytesPulled: s.pulled,
		Samples: s.samples, BeyondBound: s.beyond,
		ClockDifferential: s.differential.counts(), ReadLag: s.lag.counts(), MissingUpdates: s.missing.counts(),
		OutageClocks: s.outageClocks, StaleRows: s.staleRows, QueuedBytes: s.queued, OutageNs: int64(s.outageWait),
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
func (s *stats) blocked(begin time.Time, b *batch) {
	if s.began.IsZero() {
		return
	}
	all := time.Since(begin)
	stale := min(all, time.Duration(b.waited)*time.Microsecond)
	if b.pushed {
		stale = max(stale, all-time.Duration(b.late)*time.Microsecond)
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
	c.mu.Lock()
	defer c.mu.Unlock()
	c.stats.samples += int64(n)
}
