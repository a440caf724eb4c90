package replica

import (
	"fmt"
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/core/protocol"
)

// read compares a slot's read with the definitions, by the value alone. Then it compares the label, from which a worker
// measures, with the value.
func (s *system) read(slot, row int, value updateSet, l label) error {
	r := &s.readers[slot]
	s.say("slot %d at clock %d reads row %d: %v (applied %v)", slot, r.clock, row, value, l.applied[:s.slots])
	r.left &^= 1 << row
	if err := s.checkDefinition(slot, row, value); err != nil {
		return fmt.Errorf("slot %d at clock %d reads row %d: %w", slot, r.clock, row, err)
	}
	r.last[row] = value
	says := l.applied
	says[slot] = r.clock // own updates are added locally
	if want := s.valueOf(row, says); value != want {
		return fmt.Errorf("slot %d at clock %d reads row %d, %v, but its label says %v", slot, r.clock, row, value,
			want)
	}
	return s.checkLemma(slot, row, value, l)
}

// checkDefinition checks the ESSP paper, section 2: under BSP a read at clock c sees all updates of clocks < c and no
// others; under SSP and ESSP it sees at least those of clocks ≤ c-s-1. Under all models it sees the slot's own updates
// and everything that the slot has seen before.
func (s *system) checkDefinition(slot, row int, value updateSet) error {
	c := s.readers[slot].clock
	var must, own vector
	for p := range s.slots {
		must[p] = max(0, consistency.RequiredMinClock(s.model, c))
		if s.model.Bounded() {
			must[p] = max(0, c-s.model.Staleness)
		}
	}
	own[slot] = c
	switch want := s.valueOf(row, must); {
	case s.model.Bounded() && want&^value != 0:
		return fmt.Errorf("it lacks %v of %v", want&^value, want)
	case s.model.Kind == perdure.BSP && value != want:
		return fmt.Errorf("it sees %v, which it must not", value&^want)
	case s.valueOf(row, own)&^value != 0:
		return fmt.Errorf("it lacks its own %v", s.valueOf(row, own)&^value)
	case s.readers[slot].last[row]&^value != 0:
		return fmt.Errorf("it no longer sees %v", s.readers[slot].last[row]&^value)
	}
	return nil
}

// exist returns, by slot, the number of clocks for which the slot has made an update.
func (s *system) exist() (known vector) {
	for p := range s.slots {
		known[p] = s.readers[p].clock
		if s.readers[p].sent {
			known[p]++
		}
	}
	return known
}

// checkLemma checks the ESSP paper, lemma 4: if every slot reads in every clock, a read lacks at most P(2s+1) of the
// updates that exist.
func (s *system) checkLemma(slot, row int, value updateSet, l label) error {
	if !s.model.Bounded() {
		return nil
	}
	known, c := s.exist(), s.readers[slot].clock
	for p := range s.slots {
		if s.oneWay { // a slot that does not read runs ahead: the lemma counts clocks ≤ c+s
			known[p] = min(known[p], c+s.model.Staleness+1)
		}
	}
	most := consistency.MissingBound(s.slots, s.model.Staleness)
	lacks := int64(0)
	for missing := s.valueOf(row, known) &^ value; missing != 0; missing &= missing - 1 {
		lacks++
	}
	count := consistency.MissingUpdates(
		l.applied[:s.slots], known[:s.slots], make([]protocol.Interval, s.slots), s.model.Staleness,
		c)
	count -= max(0, int64(c-l.applied[slot])) // own updates are added locally
	s.worst = max(s.worst, lacks)
	s.say("  %d of the updates that exist are missing, at most %d may be", count, most)
	if lacks > most || count > most || lacks > count {
		return fmt.Errorf("slot %d at clock %d, row %d: %d existing updates are missing, %d by the label, "+
			"at most %d may be", slot, c, row, lacks, count, most)
	}
	return nil
}

// mayRead returns the updates contained in every value of a row that a slot may read without a further event at the
// shard: the cached row while it is pushed, an answer in transit, otherwise the shard's row.
func (s *system) mayRead(slot, row int) updateSet {
	r, shard := &s.readers[slot], s.home(row)
	sees := s.shards[shard].row(row)
	if l := r.look(row); l.Known && l.Pushed && r.links[shard].open {
		sees = setOf(l.Values)
	}
	for i := range s.downs[slot][shard] {
		f := &s.downs[slot][shard][i]
		for _, a := range r.side.reads.PendingRequests() {
			if f.kind == getFrame && f.request == int(a.ID) && int(a.Rows.ID(0)) == row && a.Awaited {
				sees &= f.values[row]
			}
		}
	}
	return sees
}

// checkTransit checks the ESSP paper, section 3 (VAP). When a slot sends its update of a clock, its own updates that
// not every slot can see add up to at most V/√(clock+1) in any value, or there is only one of them.
func (s *system) checkTransit(slot int) error {
	c := s.readers[slot].clock
	transit := map[perdure.Clock]bool{c: true}
	worst := 0
	for row := range s.rows {
		sum := 0
		for clock := range c + 1 {
			if s.writes[slot][clock].has(row) && (clock == c || s.unseen(slot, row, clock)) {
				transit[clock] = true
				sum++
			}
		}
		worst = max(worst, sum)
	}
	if float64(worst) > s.model.Bound/math.Sqrt(float64(c)+1) && len(transit) > 1 {
		return fmt.Errorf("slot %d sends clock %d while %d updates with a sum of %d are in transit", slot, c,
			len(transit)-1, worst)
	}
	return nil
}

// unseen reports whether any other live slot may still read a row without the update that slot made in clock.
func (s *system) unseen(slot, row int, clock perdure.Clock) bool {
	for q := range s.slots {
		if q != slot && !s.readers[q].dead && s.mayRead(q, row)&one(slot, clock) == 0 {
			return true
		}
	}
	return false
}

// finished checks a state in which nothing more can happen: every process must have finished, and everything must be
// applied and seen.
func (s *system) finished() error {
	for slot := range s.slots {
		r := &s.readers[slot]
		if r.dead {
			continue
		}
		if r.clock < s.ends[slot] {
			return fmt.Errorf("stuck: slot %d at clock %d, still to read %v", slot, r.clock, r.left.ids())
		}
		for shard := range s.plan.shards {
			if n := s.countsOf(slot, shard); n.Applied != s.ends[slot] || n.Seen != s.ends[slot] {
				return fmt.Errorf("stuck: of slot %d's clocks shard %d has applied %d, and %d are seen", slot, shard,
					n.Applied, n.Seen)
			}
		}
		for row := range s.rows {
			l, is := r.look(row), s.shards[s.home(row)].row(row)
			if l.Known && l.Pushed && setOf(l.Values) != is {
				return fmt.Errorf("slot %d is pushed row %d, but has %v instead of %v", slot, row, setOf(l.Values), is)
			}
		}
	}
	return nil
}

// countsOf returns a slot's counts on a shard, as the shard would send them.
func (s *system) countsOf(slot, shard int) protocol.Counts {
	return s.shards[shard].rep.Counts(&Reader{Slot: perdure.Slot(slot)})
}
