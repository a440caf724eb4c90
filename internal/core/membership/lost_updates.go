package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
)

// An update is lost if no process has kept it and the job does not roll back to redo it. A gap is a range of clocks of
// one slot that one shard lacks permanently. A restored shard has the clocks of its checkpoint, and workers resend the
// updates that they have kept.
//
// Invariants:
//
//   - Each lost update is counted once, however often its shard dies.
//   - A checkpoint makes losses final: updates that it lacks are lost permanently, and only their number is kept.
//     Losses beyond the checkpoint are determined again when the shard is restored again.
//   - A slot's process never starts below a clock at which an earlier process of the slot started. Lost updates are
//     therefore never redone.
//
// All of it is plain data and part of the job record. Nothing here is safe for concurrent use.

// gap is a range of a slot's clocks that a shard counts as lost: From ≤ clock < Until.
type gap struct {
	Shard perdure.ShardID `json:"shard"`
	Slot  perdure.Slot    `json:"slot"`
	From  perdure.Clock   `json:"from"`
	Until perdure.Clock   `json:"until"`
}

// lostUpdates counts the updates that a job has lost. Strategies that lose updates in other ways also add them here.
type lostUpdates struct {
	UpdatesLost int64   `json:"updates_lost"` // updates that no row contains any more
	ShardLost   []int64 `json:"shard_lost"`   // by shard: updates counted in UpdatesLost so far
	Gaps        []gap   `json:"gaps,omitempty"`
}

// Clone returns a copy that does not change with l.
func (l *lostUpdates) Clone() lostUpdates {
	return lostUpdates{l.UpdatesLost, slices.Clone(l.ShardLost), slices.Clone(l.Gaps)}
}

// Count counts n more updates of a shard as lost.
func (l *lostUpdates) Count(shard int, n int64) {
	l.UpdatesLost += n
	l.ShardLost[shard] += n
}

// lossReport describes the newly counted losses of a slot.
type lossReport struct {
	Updates int64
	Shards  int  // number of shards
	State   bool // the slot's saved state is on one of them
}

// String formats the report for users.
func (l lossReport) String() string {
	s := fmt.Sprintf("lost %d updates on %d shards (no copy exists); training continues without them", l.Updates,
		l.Shards)
	if l.State {
		s += "; the slot's saved state is that of the checkpoint"
	}
	return s
}

// AddGap counts a gap as lost, and adds the part that was not counted before to loss. Where it overlaps another gap of
// the same shard and slot, it counts once.
func (l *lostUpdates) AddGap(g gap, loss *lossReport) {
	if g.Until <= g.From {
		return
	}
	n := g.Until - g.From
	out := make([]gap, 0, len(l.Gaps)+1)
	for _, old := range l.Gaps {
		if old.Shard != g.Shard || old.Slot != g.Slot || old.From > g.Until || g.From > old.Until {
			out = append(out, old)
			continue
		}
		from, until := min(g.From, old.From), max(g.Until, old.Until)
		n += until - from - (g.Until - g.From) - (old.Until - old.From)
		g.From, g.Until = from, until
	}
	if l.Gaps = append(out, g); n > 0 {
		loss.Updates, loss.Shards = loss.Updates+int64(n), loss.Shards+1
		loss.State = loss.State || placement.HomeShard(g.Slot, len(l.ShardLost)) == g.Shard
		l.Count(int(g.Shard), int64(n))
	}
}

// RevertShard reverts the losses counted for a shard that restarts from the newest checkpoint.
func (l *lostUpdates) RevertShard(shard int) {
	l.Gaps = slices.DeleteFunc(slices.Clone(l.Gaps), func(g gap) bool {
		found := int(g.Shard) == shard
		if found {
			l.Count(int(g.Shard), int64(g.From-g.Until))
		}
		return found
	})
}

// DropCovered records that a checkpoint is durable. saved returns the clock below which it contains a slot's updates.
func (l *lostUpdates) DropCovered(saved func(perdure.Slot) perdure.Clock) {
	var left []gap
	for _, g := range l.Gaps {
		if g.From = max(g.From, saved(g.Slot)); g.From < g.Until {
			left = append(left, g)
		}
	}
	l.Gaps = left
}

// CountDecided counts the updates of a slot, below its decided start, that shards lack according to their fences.
func (l *lostUpdates) CountDecided(slot int, start perdure.Clock, fences []protocol.Fence) (loss lossReport) {
	for i := range fences {
		l.AddGap(gap{perdure.ShardID(i), perdure.Slot(slot), fences[i].Counts.Staged, start}, &loss)
	}
	return loss
}

// CountTorn counts the updates of a slot below its start that shards lack. It is for strategies without gaps, under
// which a dead shard counts all its updates as lost anyway.
func (l *lostUpdates) CountTorn(start perdure.Clock, fences []protocol.Fence) {
	for i := range fences {
		l.Count(i, int64(max(0, start-fences[i].Counts.Staged)))
	}
}

// slotGaps is the part of a slot's record that concerns lost updates.
type slotGaps struct {
	// LatestStart is where the latest process started; later ones never start below it.
	LatestStart perdure.Clock `json:"begun,omitempty"`
	// UnknownShards lists the shards that do not know the slot's progress, until its start is decided.
	UnknownShards []perdure.ShardID `json:"short,omitempty"`
	// Former lists the former membership intervals that no checkpoint contains completely.
	Former []protocol.Interval `json:"former,omitempty"`
}

// MarkUnknown records that a shard does not know the slot's progress.
func (s *slotGaps) MarkUnknown(shard int) {
	if id := perdure.ShardID(shard); !slices.Contains(s.UnknownShards, id) {
		s.UnknownShards = append(slices.Clone(s.UnknownShards), id)
	}
}

// RecordStart records where the next process starts.
func (s *slotGaps) RecordStart(start perdure.Clock) { s.LatestStart, s.UnknownShards = start, nil }

// Restore counts a slot's updates that a shard, restored from the newest checkpoint, lacks permanently: those that the
// slot's processes made before its start but after the checkpoint. If the start is not decided yet, it records that the
// shard does not know the slot's progress.
func (l *lostUpdates) Restore(shard, slot int, s *slotGaps, v *protocol.View) (loss lossReport) {
	lose := func(term protocol.Interval, until perdure.Clock) {
		from := term.Clamp(v.Saved(perdure.Slot(slot)))
		l.AddGap(gap{perdure.ShardID(shard), perdure.Slot(slot), from, until}, &loss)
	}
	for _, term := range s.Former {
		lose(term, term.Until)
	}
	switch sl := &v.Slots[slot]; {
	case sl.Incarnation == 0:
	case sl.Decided:
		lose(sl.Interval, sl.Start)
	default:
		s.MarkUnknown(shard)
	}
	return loss
}
