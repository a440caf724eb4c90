package sim

import (
	"context"
	"fmt"
	"math/bits"
	"math/rand/v2"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/worker"
)

// Ebb is a sparse table beside the History's, whose rows are made late, rest, and are evicted. Which
// slot adds to which row in which clock is a function of (seed, row, slot, clock), and what it adds is
// as in the History's table where rows may be lost: 1, and a bit of the clock. So a row tells which
// clocks it has, each once.
//
// What a row has at the end is what its shard has of the clocks in which it was added to, from the last
// time on at which it was evicted. It may have been evicted at a MinClock only if it had rested for so
// long then, and at the end it is gone if it has. What a shard has, the History's rows tell, which
// therefore are dense: each shard has some.
type Ebb struct {
	Spec perdure.TableSpec
	h    *History
	ids  []perdure.RowID
}

// columns of each slot in a row of an Ebb.
const (
	ebbCount = iota
	ebbClocks
	ebbColumns
)

// Ebb adds such a table, and makes that of the history dense. It is called before the job begins.
func (h *History) Ebb() {
	rng := rand.New(rand.NewPCG(h.job.Seed, 18))
	h.spec.Sparse, h.spec.Rows = false, int64(h.rows)
	h.ids = rowIDs(h.spec, h.job.Seed, h.rows)
	h.by.ebb = &Ebb{h: h, Spec: perdure.TableSpec{
		Name: "ebb", Dim: h.slots * ebbColumns, Sparse: true, Evict: perdure.Clock(1 + rng.IntN(6)),
		Rule: perdure.Rule{Kind: perdure.RuleAdd}, Consistency: h.spec.Consistency,
	}}
	h.by.ebb.ids = rowIDs(h.by.ebb.Spec, h.job.Seed+1, 4*h.job.Shards)
}

// adds reports whether a slot adds to a row in a clock: each row has its own first clock, is in use
// for a while, and rests.
func (e *Ebb) adds(row, slot int, c perdure.Clock) bool {
	rng := rand.New(rand.NewPCG(e.h.job.Seed^0xebb, uint64(row)))
	begins, busy, rests := perdure.Clock(rng.IntN(12)), perdure.Clock(1+rng.IntN(4)), perdure.Clock(rng.IntN(10))
	if c < begins || (c-begins)%(busy+rests) >= busy {
		return false
	}
	return rand.New(rand.NewPCG(e.h.job.Seed^0xebb, uint64(row)<<32|uint64(slot)<<16|uint64(c))).IntN(3) > 0
}

// added is the set of a slot's clocks in which it adds to a row.
func (e *Ebb) added(row, slot int) (set uint64) {
	for c := range e.h.job.Clocks {
		if e.adds(row, slot, c) {
			set |= 1 << c
		}
	}
	return set
}

// step is the program's part of a clock: it reads all rows and adds to some.
func (e *Ebb) step(ctx context.Context, w *worker.Client, t *worker.Table, clock perdure.Clock) error {
	values := make([]float32, len(e.ids)*e.Spec.Dim)
	if err := t.GetRows(ctx, e.ids, values); err != nil {
		return err
	}
	for row := range e.ids {
		what := fmt.Sprintf("%s at clock %d read row %d of the table that evicts", name(w), clock, row)
		if _, err := e.sets(what, row, values[row*e.Spec.Dim:][:e.Spec.Dim]); err != nil {
			return err
		}
	}
	slot := int(w.Slot())
	for row, id := range e.ids {
		if !e.adds(row, slot, clock) {
			continue
		}
		delta := make([]float32, e.Spec.Dim)
		delta[slot*ebbColumns+ebbCount], delta[slot*ebbColumns+ebbClocks] = 1, float32(uint64(1)<<clock)
		if err := t.IncRows([]perdure.RowID{id}, delta); err != nil {
			return err
		}
	}
	return nil
}

// sets are, by slot, the clocks that a row has, each once and none in which nobody adds to it.
func (e *Ebb) sets(what string, row int, v []float32) ([]uint64, error) {
	sets := make([]uint64, e.h.slots)
	for p := range sets {
		own := v[p*ebbColumns:]
		set := uint64(max(0, own[ebbClocks]))
		switch {
		case float64(set) != float64(own[ebbClocks]) || set > below(mostLossy):
			return nil, violated("%s: slot %d's clocks are the set %v", what, p, own[ebbClocks])
		case own[ebbCount] != float32(bits.OnesCount64(set)):
			return nil, violated("%s: slot %d has %v clocks, which are the set %b: some not once", what, p,
				own[ebbCount], set)
		case set&^e.added(row, p) != 0:
			return nil, violated("%s: slot %d has the clocks %b, it adds in %b", what, p, set, e.added(row, p))
		}
		sets[p] = set
	}
	return sets, nil
}

// oldest is the clock of a newest update below which a row is dropped at a MinClock.
func (e *Ebb) oldest(least perdure.Clock) perdure.Clock {
	step := max(1, e.Spec.Evict/4)
	return least/step*step - e.Spec.Evict
}

// all says that shards have every clock.
func (e *Ebb) all() had {
	return func(_, p int, _ perdure.ShardID) (uint64, bool) { return e.h.clockSet(p, below(e.h.job.Clocks)), true }
}

// had says which of a slot's clocks a row may have, as far as what its shard lacks goes; and whether
// anybody knows.
type had func(row, slot int, shard perdure.ShardID) (set uint64, known bool)

// final judges the table after the job.
func (e *Ebb) final(rows Contents, has had) error {
	for row, id := range e.ids {
		shard := placement.ShardOf(&e.Spec, e.h.job.Shards, id)
		must, all, judged := make([]uint64, e.h.slots), uint64(0), true
		for p := range must {
			set, known := has(row, p, shard)
			judged = judged && known
			must[p] = e.added(row, p) & set
			all |= must[p]
		}
		if !judged {
			continue
		}
		newest := perdure.Clock(bits.Len64(all)) - 1
		v, there := rows[id]
		what := fmt.Sprintf("at the end row %d of the table that evicts after %d clocks, on shard %d", row,
			e.Spec.Evict, shard)
		if stays := all != 0 && newest >= e.oldest(e.h.job.Clocks); there != stays {
			return violated("%s is there: %t, its newest update is of clock %d", what, there, newest)
		}
		if !there {
			continue
		}
		sets, err := e.sets(what, row, v)
		if err != nil {
			return err
		}
		if !e.mayBe(sets, must, all) {
			return violated("%s has by slot the clocks %b, its shard has of its updates %b, and it was never evicted "+
				"so", what, sets, must)
		}
	}
	return nil
}

// saves judges what a shard's files have of an Ebb's rows where each save is of all that has changed: all updates that
// the newest file says, of rows that cannot have been evicted yet.
func (l *Lineage) saves(v *words.View, shard perdure.ShardID, parts []*table.Part, newest *checkpoint.Segment) error {
	e, had := l.h.by.ebb, l.shards[shard].of[born{newest.Generation, newest.Epoch}]
	if e == nil || had == nil || l.h.job.Recovery.Share < 1 || l.h.job.TwoStep(nil) && l.succeeded(v) {
		return nil
	}
	files, err := l.begun(parts)
	if err != nil {
		return err
	}
	come := max(l.h.come(), newest.Cut) // what is evicted while the file is written need not be in any
	if newest.Generation < v.Generation {
		come = max(come, l.h.came) // the earlier run wrote it, and nobody had named it before all died
	}
	for row, id := range e.ids {
		if placement.ShardOf(&e.Spec, l.h.job.Shards, id) != shard {
			continue
		}
		must, all := make([]uint64, l.h.slots), uint64(0)
		for p, n := range newest.Applied {
			if must[p] = had.since(l.h, p, n); had.ebb[row] != nil {
				must[p] |= had.ebb[row][p]
			}
			must[p] &= e.added(row, p)
			all |= must[p]
		}
		if last := perdure.Clock(bits.Len64(all)) - 1; last < 0 || last < e.oldest(come) {
			continue
		}
		if files[row] == nil || !e.mayBe(files[row], must, all) {
			return violated("row %d of the table that evicts after %d clocks, on shard %d, is saved at clock %d with "+
				"the clocks %b by slot, and had %b", row, e.Spec.Evict, shard, newest.Cut, files[row], must)
		}
	}
	return nil
}

// come is the most that any shard's MinClock can be.
func (h *History) come() perdure.Clock {
	least := h.job.Clocks
	for p, started := range h.started {
		n := len(h.terms[p])
		if n == 0 || h.terms[p][n-1].Until > 0 {
			continue
		}
		most := h.terms[p][n-1].From // before which nobody waits for it
		for c := range started {
			most = max(most, c+1)
		}
		least = min(least, most)
	}
	return least
}

// succeeded reports whether a process of any slot has died: a clock of its may count, and be lost here.
func (l *Lineage) succeeded(v *words.View) bool {
	for p := range v.Slots {
		if l.h.lives[p] > 1 || l.h.earlier.succeeded[p] || v.Slots[p].Incarnation > 1 {
			return true
		}
	}
	return false
}

// mayBe reports whether a row may have these clocks, of those that it must have but for what went when
// it was evicted: at a MinClock from which on it has all, and before which it had rested.
func (e *Ebb) mayBe(sets, must []uint64, all uint64) bool {
	for least := range e.h.job.Clocks + 1 {
		last := perdure.Clock(bits.Len64(all&below(least))) - 1
		if least > 0 && last >= e.oldest(least) {
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
