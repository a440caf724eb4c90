package server

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// scaled is what an update's deltas are multiplied with before they are applied: it
// follows from the log alone, so that all replicas, and every replay, do the same.
type scaled struct {
	by     float32 // 1: they are applied as they are
	deltas []float32
}

// scale looks how old an update is that is applied at a MinClock. It needs sh.mu.
func (sh *shard) scale(u *consistency.Update, minClock perdure.Clock) {
	sh.scaled.by = 1
	if n := len(u.Parts); sh.scales && n > 0 {
		b := wire.ReadBlocks(u.Parts[n-1])
		for b.Next() {
		}
		sh.scaled.by = consistency.Scale(sh.job.StaleScale, consistency.Origin{Basis: b.Basis, Lag: b.Lag, Alone: b.Alone}, minClock, sh.intake.Slots(u.Clock))
	}
}

// weakened returns a block's values as they are applied; they themselves stay as they
// are.
func (sh *shard) weakened(b *wire.Block) []float32 {
	s, deltas := &sh.scaled, b.Values
	if s.by == 1 || !sh.job.StaleScale.Weakens(sh.parts[b.Table].Spec.Rule) {
		return deltas
	}
	s.deltas = append(s.deltas[:0], deltas...)
	for i := range s.deltas {
		s.deltas[i] *= s.by
	}
	return s.deltas
}
