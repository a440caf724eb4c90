package sim

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/worker"
)

// EvictingTable is a sparse table, in addition to the History's, whose rows are created late, rest, and are evicted.
// Which slot adds to which row in which clock is a function of (seed, row, slot, clock). As in a History table that may
// lose rows, each delta is 1 and one bit per clock. A row therefore shows which clocks it contains, each once.
//
// At the end, a row contains the clocks that its shard has and in which the row was updated, counted from its last
// eviction. It may have been evicted at a MinClock only if it had rested long enough by then. If it has rested long
// enough at the end, it must be gone. Which clocks a shard has is read from the History's rows. These are dense, so
// that each shard has some.
type EvictingTable struct {
	Spec perdure.TableSpec
	h    *History
	ids  []perdure.RowID
}

// Columns of each slot in a row of an EvictingTable.
const (
	evictingCount = iota
	evictingClocks
	evictingColumns
)

// AddEvictingTable adds an EvictingTable and makes the History's table dense. It must be called before the job begins.
func (h *History) AddEvictingTable() {
	rng := rand.New(rand.NewPCG(h.job.Seed, 18))
	h.spec.Sparse, h.spec.Rows = false, int64(h.rows)
	h.ids = rowIDs(h.spec, h.job.Seed, h.rows)
	h.aux.evicting = &EvictingTable{h: h, Spec: perdure.TableSpec{
		Name: "ebb", Dim: h.slots * evictingColumns, Sparse: true, Evict: perdure.Clock(1 + rng.IntN(6)),
		Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: h.spec.Consistency,
	}}
	h.aux.evicting.ids = rowIDs(h.aux.evicting.Spec, h.job.Seed+1, 4*h.job.Shards)
}

// updatesRow reports whether a slot adds to a row in a clock. From its first clock on, each row alternates between a
// busy phase and a rest.
func (e *EvictingTable) updatesRow(row, slot int, c perdure.Clock) bool {
	rng := rand.New(rand.NewPCG(e.h.job.Seed^0xebb, uint64(row)))
	begins, busy, rests := perdure.Clock(rng.IntN(12)), perdure.Clock(1+rng.IntN(4)), perdure.Clock(rng.IntN(10))
	if c < begins || (c-begins)%(busy+rests) >= busy {
		return false
	}
	return rand.New(rand.NewPCG(e.h.job.Seed^0xebb, uint64(row)<<32|uint64(slot)<<16|uint64(c))).IntN(3) > 0
}

// clocksAdded returns the set of a slot's clocks in which it adds to a row.
func (e *EvictingTable) clocksAdded(row, slot int) (set uint64) {
	for c := range e.h.job.Clocks {
		if e.updatesRow(row, slot, c) {
			set |= 1 << c
		}
	}
	return set
}

// step is the program's work in one clock: it reads all rows and adds to some.
func (e *EvictingTable) step(ctx context.Context, w *worker.Client, t *worker.Table, clock perdure.Clock) error {
	values := make([]float32, len(e.ids)*e.Spec.Dim)
	if err := t.GetRows(ctx, e.ids, values); err != nil {
		return err
	}
	for row := range e.ids {
		what := fmt.Sprintf("%s at clock %d read row %d of the table that evicts", name(w), clock, row)
		if _, err := e.clockSets(what, row, values[row*e.Spec.Dim:][:e.Spec.Dim]); err != nil {
			return err
		}
	}
	slot := int(w.Slot())
	for row, id := range e.ids {
		if !e.updatesRow(row, slot, clock) {
			continue
		}
		delta := make([]float32, e.Spec.Dim)
		delta[slot*evictingColumns+evictingCount], delta[slot*evictingColumns+evictingClocks] = 1, float32(
			uint64(1)<<clock)
		if err := t.IncRows([]perdure.RowID{id}, delta); err != nil {
			return err
		}
	}
	return nil
}

// clockSets returns, by slot, the clocks that a row contains. It fails if a clock is not contained exactly once, or if
// the slot does not add to the row in it.
func (e *EvictingTable) clockSets(what string, row int, v []float32) ([]uint64, error) {
	sets := make([]uint64, e.h.slots)
	for p := range sets {
		own := v[p*evictingColumns:]
		set := uint64(max(0, own[evictingClocks]))
		switch {
		case float64(set) != float64(own[evictingClocks]) || set > below(maxLossyClocks):
			return nil, violated("%s: slot %d's clocks are the set %v", what, p, own[evictingClocks])
		case own[evictingCount] != float32(bits.OnesCount64(set)):
			return nil, violated("%s: slot %d has %v clocks, but the set %b: some are missing or duplicated", what, p,
				own[evictingCount], set)
		case set&^e.clocksAdded(row, p) != 0:
			return nil, violated("%s: slot %d has the clocks %b, but adds only in %b", what, p, set,
				e.clocksAdded(row, p))
		}
		sets[p] = set
	}
	return sets, nil
}

// oldestKept returns the lowest clock that a row's newest update may have without being evicted at MinClock least.
func (e *EvictingTable) oldestKept(least perdure.Clock) perdure.Clock {
	step := max(1, e.Spec.Evict/4)
	return least/step*step - e.Spec.Evict
}

// containsAll returns a had for shards that contain every clock.
func (e *EvictingTable) containsAll() containsFunc {
	return func(_, p int, _ perdure.ShardID) (uint64, bool) { return e.h.clockSet(p, below(e.h.job.Clocks)), true }
}

// containsFunc returns which of a slot's clocks a row may contain, given the updates that its shard lacks. known
// reports whether that could be determined.
type containsFunc func(row, slot int, shard perdure.ShardID) (set uint64, known bool)

// final checks the table after the job.
func (e *EvictingTable) final(rows Contents, has containsFunc) error {
	for row, id := range e.ids {
		shard := placement.ShardOf(&e.Spec, e.h.job.Shards, id)
		must, all, judged := make([]uint64, e.h.slots), uint64(0), true
		for p := range must {
			set, known := has(row, p, shard)
			judged = judged && known
			must[p] = e.clocksAdded(row, p) & set
			all |= must[p]
		}
		if !judged {
			continue
		}
		newest := perdure.Clock(bits.Len64(all)) - 1
		v, there := rows[id]
		what := fmt.Sprintf("at the end row %d of the table that evicts after %d clocks, on shard %d", row,
			e.Spec.Evict, shard)
		if stays := all != 0 && newest >= e.oldestKept(e.h.job.Clocks); there != stays {
			return violated("%s is present: %t, but its newest update is of clock %d", what, there, newest)
		}
		if !there {
			continue
		}
		sets, err := e.clockSets(what, row, v)
		if err != nil {
			return err
		}
		if !e.isPossible(sets, must, all) {
			return violated("%s has by slot the clocks %b, its shard has %b of them, and no eviction explains the "+
				"difference", what, sets, must)
		}
	}
	return nil
}

// checkEvictingRows checks the evicting table's rows in a shard's files, where each save contains all changed rows.
// Rows that cannot have been evicted yet must contain all updates that the newest file claims.
func (l *RowLineage) checkEvictingRows(
	v *protocol.View,
	shard perdure.ShardID,
	parts []*table.Part,
	newest *checkpoint.Segment,
) error {
	e, had := l.h.aux.evicting, l.shards[shard].lives[lifeID{newest.Generation, newest.Epoch}]
	if e == nil || had == nil || l.h.job.Recovery.Share < 1 || l.h.ticks() && l.succeeded(v) {
		return nil
	}
	files, err := l.restoredClocks(parts)
	if err != nil {
		return err
	}
	come := max(l.h.minClockBound(), newest.Cut) // rows evicted while the file is written may be in no file
	if newest.Generation < v.Generation {
		come = max(come, l.h.maxMinClock) // written by the earlier run, but not recorded before all its processes died
	}
	for row, id := range e.ids {
		if placement.ShardOf(&e.Spec, l.h.job.Shards, id) != shard {
			continue
		}
		must, all := make([]uint64, l.h.slots), uint64(0)
		for p, n := range newest.Applied {
			if must[p] = had.clocksSinceBase(l.h, p, n); had.evictingRows[row] != nil {
				must[p] |= had.evictingRows[row][p]
			}
			must[p] &= e.clocksAdded(row, p)
			all |= must[p]
		}
		if last := perdure.Clock(bits.Len64(all)) - 1; last < 0 || last < e.oldestKept(come) {
			continue
		}
		if files[row] == nil || !e.isPossible(files[row], must, all) {
			return violated("row %d of the table that evicts after %d clocks, on shard %d, was saved at clock %d with "+
				"the clocks %b by slot, want %b", row, e.Spec.Evict, shard, newest.Cut, files[row], must)
		}
	}
	return nil
}

// minClockBound returns an upper bound for the MinClock of every shard.
func (h *History) minClockBound() perdure.Clock {
	least := h.job.Clocks
	for p, started := range h.started {
		n := len(h.terms[p])
		if n == 0 || h.terms[p][n-1].Until > 0 {
			continue
		}
		most := h.terms[p][n-1].From // shards do not wait for it before that
		for c := range started {
			most = max(most, c+1)
		}
		least = min(least, most)
	}
	return least
}

// succeeded reports whether a process of any slot has died. Then a clock of that slot may count as applied although its
// update is lost here.
func (l *RowLineage) succeeded(v *protocol.View) bool {
	for p := range v.Slots {
		if l.h.processes[p] > 1 || l.h.priorRun.succeeded[p] || v.Slots[p].Incarnation > 1 {
			return true
		}
	}
	return false
}

// isPossible reports whether a row may contain exactly these sets. They must equal must, except for the clocks below
// one MinClock at which the row could have been evicted because it had rested.
func (e *EvictingTable) isPossible(sets, must []uint64, all uint64) bool {
	for least := range e.h.job.Clocks + 1 {
		last := perdure.Clock(bits.Len64(all&below(least))) - 1
		if least > 0 && last >= e.oldestKept(least) {
			continue
		}
		same := true
		for p := range sets {
			same = same && sets[p] == must[p]&^below(least)
		}
		if same {
			return true
		}
	}
	return false
}
