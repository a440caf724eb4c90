package reads

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
)

// sight is what n rows that are read contain.
type sight struct {
	shard  *Shard
	c      *contents
	n      int
	beyond bool // the model's bound, because the shard is out
}

// saw notes what rows that are read contain.
func (c *Call) saw(s *Shard, of *contents, n int, beyond bool) {
	if last := len(c.seen) - 1; last >= 0 {
		if l := &c.seen[last]; l.c == of && l.shard == s && l.beyond == beyond {
			l.n += n
			return
		}
	}
	c.seen = append(c.seen, sight{s, of, n, beyond})
}

// basis is what the present clock's updates are computed from.
type basis struct {
	// Least MinClock of what was read in this clock, or in the last one that had reads;
	// wire.NoBasis: nothing was.
	least perdure.Clock
	shown perdure.Clock // how many of the slot's own clocks showed in those rows
	fresh bool          // they are of this clock
}

// Origin returns what the present clock's update to a shard is computed from. Its Basis is
// wire.NoBasis if nothing was read.
func (r *Reader) Origin(s *Shard) consistency.Origin {
	return consistency.Origin{Basis: r.basis.least, Lag: r.now.Clock - r.basis.shown, Alone: s.alone}
}

// Built notes that the clock's updates exist: a clock without reads is computed from what
// was read before.
func (r *Reader) Built() { r.basis.fresh = false }

// reads notes what is read, and the present clock's update computed from.
func (t *Table) reads(seen *sight) {
	r, s, b := t.r, seen.shard, &t.r.basis
	shown := r.now.Clock
	switch {
	case seen.c.lacks > 0:
		shown = seen.c.lacks - 1
	case seen.beyond && !t.spec.Foretold(): // own updates never show
		shown = min(shown, consistency.Count(seen.c.applied, r.cfg.Slot))
	case seen.beyond && s.hidden:
		shown = s.since
	}
	if !b.fresh {
		*b = basis{least: seen.c.minClock, shown: shown, fresh: true}
		for _, other := range r.shards {
			other.alone = false
		}
	}
	b.least, b.shown = min(b.least, seen.c.minClock), min(b.shown, shown)
	s.alone = s.alone || seen.beyond
}

// measure counts what a read at a clock saw: for every other slot the clock differential
// and what is missing, and how far the rows were behind their shard. A read that does not
// keep its bound fails with perdure.ErrBound, whatever servers say.
func (t *Table) measure(seen []sight, clock perdure.Clock) error {
	r, m := t.r, t.spec.Consistency
	if r.cfg.Slot < 0 {
		return nil
	}
	for i := range seen {
		s := &seen[i]
		t.reads(s)
		missing := int64(0)
		for i := range r.now.Spans {
			slot, span := perdure.Slot(i), &r.now.Spans[i]
			if slot != r.cfg.Slot && span.Has(r.now.Clock) {
				clocks := span.Clamp(consistency.Count(s.c.applied, slot))
				r.stats.Differential.add(clocks-1-r.now.Clock, int64(s.n))
				missing += max(0, int64(consistency.Count(r.known, slot)-clocks))
			}
		}
		r.stats.Missing.add(perdure.Clock(missing), int64(s.n))
		r.stats.Lag.add(max(0, s.shard.minClock-s.c.minClock), int64(s.n))
		if s.beyond {
			r.stats.Beyond += int64(s.n)
		}
		if !m.Bounded() || s.beyond {
			continue
		}
		lacks := consistency.Missing(s.c.applied, r.known, r.now.Spans, m.Staleness, clock)
		most := consistency.MissingBound(len(r.now.Spans), m.Staleness)
		if lacks > most || !consistency.MayRead(m, s.c.minClock, clock) {
			return fmt.Errorf("%w: table %s, %s, clock %d: a row of shard %d has MinClock %d and lacks %d updates, "+
				"at most %d may", perdure.ErrBound, t.spec.Name, m, clock, s.shard.id, s.c.minClock, lacks, most)
		}
	}
	return nil
}

// Stats are counted since the reader began.
type Stats struct {
	Pulled int64 // bytes of answers and pushes
	Beyond int64 // rows that were read beyond their model's bound, while a shard was out
	// Of every row that was read: by how many clocks each other slot's count in it differs
	// from what the reader's own would be; how far it was behind its shard, in clocks; how
	// many updates it lacked that were known to exist.
	Differential, Lag, Missing Histogram
}

// Stats returns the counters, which are the reader's own; a nil reader has zeros.
func (r *Reader) Stats() *Stats {
	if r == nil {
		return &Stats{}
	}
	return &r.stats
}

// Histogram counts whole numbers, small ones without allocating.
type Histogram struct {
	near [257]int64 // -128 … 128
	far  map[int64]int64
}

// mostFar is how many numbers that are not small a Histogram tells apart.
const mostFar = 1024

func (h *Histogram) add(v perdure.Clock, n int64) {
	if v >= -128 && v <= 128 {
		h.near[v+128] += n
		return
	}
	if h.far == nil {
		h.far = map[int64]int64{}
	}
	if len(h.far) < mostFar || h.far[int64(v)] > 0 {
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
