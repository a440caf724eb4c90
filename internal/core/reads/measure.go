package reads

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
)

// readRecord records the contents of n rows that were read.
type readRecord struct {
	shard       *Shard
	c           *contents
	n           int
	beyondBound bool // beyond the model's bound, because the shard is unavailable
}

// saw records the contents of rows that were read.
func (c *Call) saw(s *Shard, of *contents, n int, beyond bool) {
	if last := len(c.seen) - 1; last >= 0 {
		if l := &c.seen[last]; l.c == of && l.shard == s && l.beyondBound == beyond {
			l.n += n
			return
		}
	}
	c.seen = append(c.seen, readRecord{s, of, n, beyond})
}

// basis describes the reads that the current clock's updates are computed from.
type basis struct {
	// The smallest MinClock of the rows read in this clock, or in the last clock with reads; wire.NoBasis: no reads.
	minClock perdure.Clock
	ownShown perdure.Clock // how many of the slot's own clocks showed in these rows
	fresh    bool          // the rows were read in this clock
}

// Origin describes the reads that the current clock's update to a shard is computed from. Its Basis is wire.NoBasis if
// nothing was read.
func (r *Reader) Origin(s *Shard) consistency.Origin {
	return consistency.Origin{
		Basis: r.basis.minClock, Lag: r.now.Clock - r.basis.ownShown, DuringOutage: s.readDuringOutage,
	}
}

// UpdatesBuilt records that the clock's updates exist. A clock without reads is computed from earlier reads.
func (r *Reader) UpdatesBuilt() { r.basis.fresh = false }

// reads records a read, which the current clock's update is computed from.
func (t *Table) reads(seen *readRecord) {
	r, s, b := t.r, seen.shard, &t.r.basis
	shown := r.now.Clock
	switch {
	case seen.c.ownMissingFrom > 0:
		shown = seen.c.ownMissingFrom - 1
	case seen.beyondBound && !t.spec.HasPredictableEffect(): // own updates never show
		shown = min(shown, consistency.AppliedCount(seen.c.applied, r.cfg.Slot))
	case seen.beyondBound && s.hidden:
		shown = s.since
	}
	if !b.fresh {
		*b = basis{minClock: seen.c.minClock, ownShown: shown, fresh: true}
		for _, other := range r.shards {
			other.readDuringOutage = false
		}
	}
	b.minClock, b.ownShown = min(b.minClock, seen.c.minClock), min(b.ownShown, shown)
	s.readDuringOutage = s.readDuringOutage || seen.beyondBound
}

// measure counts what a read at a clock saw: the clock differential and the missing updates for every other slot, and
// how far the rows lagged behind their shard. A read that violates its bound fails with perdure.ErrBound, whatever
// servers claim.
func (t *Table) measure(seen []readRecord, clock perdure.Clock) error {
	r, m := t.r, t.spec.Consistency
	if r.cfg.Slot < 0 {
		return nil
	}
	for i := range seen {
		s := &seen[i]
		t.reads(s)
		missing := int64(0)
		for i := range r.now.Intervals {
			slot, interval := perdure.Slot(i), &r.now.Intervals[i]
			if slot != r.cfg.Slot && interval.Has(r.now.Clock) {
				clocks := interval.Clamp(consistency.AppliedCount(s.c.applied, slot))
				r.stats.Differential.add(clocks-1-r.now.Clock, int64(s.n))
				missing += max(0, int64(consistency.AppliedCount(r.known, slot)-clocks))
			}
		}
		r.stats.Missing.add(perdure.Clock(missing), int64(s.n))
		r.stats.Lag.add(max(0, s.shard.minClock-s.c.minClock), int64(s.n))
		if s.beyondBound {
			r.stats.Beyond += int64(s.n)
		}
		if !m.Bounded() || s.beyondBound {
			continue
		}
		lacks := consistency.MissingUpdates(s.c.applied, r.known, r.now.Intervals, m.Staleness, clock)
		most := consistency.MissingBound(len(r.now.Intervals), m.Staleness)
		if lacks > most || !consistency.MayRead(m, s.c.minClock, clock) {
			return fmt.Errorf("%w: table %s, %s, clock %d: a row of shard %d has MinClock %d and lacks "+
				"%d updates; at most %d are allowed",
				perdure.ErrBound, t.spec.Name, m, clock, s.shard.id, s.c.minClock, lacks, most)
		}
	}
	return nil
}

// Stats are counters since the reader was created.
type Stats struct {
	Pulled int64 // size of answers and pushes
	Beyond int64 // rows read beyond their model's bound while a shard was unavailable
	// For every row read: the differences between each other slot's count and the reader's own clock, the lag behind
	// the shard in clocks, and the number of missing updates that were known to exist.
	Differential, Lag, Missing Histogram
}

// Stats returns the counters, which the reader keeps updating. A nil reader has zeros.
func (r *Reader) Stats() *Stats {
	if r == nil {
		return &Stats{}
	}
	return &r.stats
}

// Histogram counts integers. Small ones need no allocation.
type Histogram struct {
	near [257]int64 // -128 … 128
	far  map[int64]int64
}

// maxFar is the maximum number of distinct large integers in a Histogram.
const maxFar = 1024

func (h *Histogram) add(v perdure.Clock, n int64) {
	if v >= -128 && v <= 128 {
		h.near[v+128] += n
		return
	}
	if h.far == nil {
		h.far = map[int64]int64{}
	}
	if len(h.far) < maxFar || h.far[int64(v)] > 0 {
		h.far[int64(v)] += n
	}
}

// Counts returns how often each number was counted.
func (h *Histogram) Counts() map[int64]int64 {
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
