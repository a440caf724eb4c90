package outbox

import (
	"math"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/table"
)

// Vap limits the updates in transit, which not every slot can see. A clock's updates are sent when their sum with this
// slot's other updates in transit is small enough, or when nothing else is in transit (ESSP paper, section 3).

// TransitChanges returns a number that increases whenever the updates in transit may have changed: when a shard is
// opened, and when more of its updates are seen. MaySend need not be called again until it has increased. The sum of
// the shards' counts is not such a number, because a restored shard may lower its counts and lose inherited updates.
func (b *Outbox) TransitChanges() int64 { return b.transitChanges }

// MaySend reports whether vap allows sending the current clock's updates, which must be Built.
func (b *Outbox) MaySend() bool {
	if b.limits.Mutations.Bound {
		return true
	}
	alone := true
	for _, s := range b.shards {
		if !s.inheritedKnown || s.counts.Seen < s.inherited {
			return false // an earlier process's updates are in transit, and may be large
		}
		alone = alone && len(s.inTransit()) <= 1
	}
	beyond := false
	for _, t := range b.tables {
		if t == nil || t.spec.Consistency.Kind != perdure.VAP {
			continue
		}
		norm := t.transitNorm()
		if !consistency.MaySend(t.spec.Consistency, b.clock, norm, alone) {
			return false
		}
		beyond = beyond || !consistency.MaySend(t.spec.Consistency, b.clock, norm, false)
	}
	if beyond {
		b.Counters.Beyond++
	}
	return true
}

// inTransit returns the updates that not every slot can see, including the one that waits to be sent. Updates made by
// an earlier process of the slot are excluded.
func (s *Shard) inTransit() sequence {
	from := max(s.counts.Seen, s.inherited)
	for i, u := range s.kept {
		if u.clock >= from {
			return s.kept[i:]
		}
	}
	return nil
}

// transitNorm returns the largest absolute change of any value by the sum of the table's updates in transit.
func (t *Table) transitNorm() (norm float64) {
	one := make([]float32, t.spec.Dim)
	for _, s := range t.outbox.shards {
		updates := s.inTransit()
		sums := map[perdure.RowID][]float32{}
		for _, u := range updates {
			alone := len(updates) == 1 // under vap no part is sent early, so no row is in an update twice
			norm = max(norm, t.addTransit(u, sums, one, alone))
		}
		for _, sum := range sums {
			norm = max(norm, largest(sum))
		}
	}
	return norm
}

// addTransit adds an update to the sums by row. If it is alone in transit, no sums are needed: addTransit returns its
// largest value, and uses one as memory for a row.
func (t *Table) addTransit(
	u *Update, sums map[perdure.RowID][]float32, one []float32, alone bool,
) (norm float64) {
	dim := t.spec.Dim
	for i := range u.blocks {
		b := &u.blocks[i]
		for j := 0; j < b.Count && b.Table == t.id; j++ {
			sum := one
			if alone {
				clear(one)
			} else if sum = sums[b.ID(j)]; sum == nil {
				sum = make([]float32, dim)
				sums[b.ID(j)] = sum
			}
			table.Apply(t.spec.Rule, dim, sum, b.Values[j*dim:(j+1)*dim], u.clock)
			if alone {
				norm = max(norm, largest(sum))
			}
		}
	}
	return norm
}

// largest returns the largest absolute value; NaN counts as +Inf.
func largest(values []float32) (norm float64) {
	for _, v := range values {
		if v != v {
			return math.Inf(1)
		}
		norm = max(norm, math.Abs(float64(v)))
	}
	return norm
}
