package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/words"
)

// An update is lost if nobody has kept it and the job does not go back to redo it. A gap is a range of clocks of one
// slot that one shard lacks for good; a restored shard has the clocks of its checkpoint, and workers send again what
// they have kept.
//
// Invariants:
//
//   - each lost update is counted once, however often its shard dies;
//   - a checkpoint ends all doubt: what it lacks is lost for good, and only the number is kept. What a shard lacks
//     beyond its checkpoint is determined again when the shard is restored again;
//   - a slot's process never begins below a clock at which an earlier process of the slot began. Lost updates are
//     therefore never redone.
//
// All of it is plain data, which is part of the facts. Nothing here is safe for concurrent use.

// gap is a part of a slot's clocks that a shard counts as lost: From ≤ clock < Until.
type gap struct {
	Shard perdure.ShardID `json:"shard"`
	Slot  perdure.Slot    `json:"slot"`
	From  perdure.Clock   `json:"from"`
	Until perdure.Clock   `json:"until"`
}

// lostUpdates is what a job has lost. Its strategy may lose updates in other ways, too, which whoever
// finds them adds to the counts.
type lostUpdates struct {
	UpdatesLost int64   `json:"updates_lost"` // whose effect is in no row any more
	ShardLost   []int64 `json:"shard_lost"`   // by shard: updates counted in UpdatesLost so far
	Gaps        []gap   `json:"gaps,omitempty"`
}

// Clone returns a copy that later changes leave as it is.
func (l *lostUpdates) Clone() lostUpdates {
	return lostUpdates{l.UpdatesLost, slices.Clone(l.ShardLost), slices.Clone(l.Gaps)}
}

// Count counts n more updates of a shard as lost.
func (l *lostUpdates) Count(shard int, n int64) {
	l.UpdatesLost += n
	l.ShardLost[shard] += n
}

// lossReport is what is newly counted of a slot.
type lossReport struct {
	Updates int64
	Shards  int  // on how many
	State   bool // the slot's saved state is on one of them
}

// String says it for people.
func (l lossReport) String() string {
	s := fmt.Sprintf("%d updates, which nobody has kept, are lost on %d shards; nobody goes back for them", l.Updates,
		l.Shards)
	if l.State {
		s += ", and of its saved state what the checkpoint has is left"
	}
	return s
}

// Lose counts a gap as lost, and notes what of it was not counted before: what it shares with
// another of the same shard and slot counts once.
func (l *lostUpdates) Lose(g gap, loss *lossReport) {
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
		loss.State = loss.State || placement.Home(g.Slot, len(l.ShardLost)) == g.Shard
		l.Count(int(g.Shard), int64(n))
	}
}

// Find takes back what was counted of a shard that begins again from the newest checkpoint.
func (l *lostUpdates) Find(shard int) {
	l.Gaps = slices.DeleteFunc(slices.Clone(l.Gaps), func(g gap) bool {
		found := int(g.Shard) == shard
		if found {
			l.Count(int(g.Shard), int64(g.From-g.Until))
		}
		return found
	})
}

// Cover notes that a checkpoint of a clock is durable.
func (l *lostUpdates) Cover(cut perdure.Clock) {
	var left []gap
	for _, g := range l.Gaps {
		if g.From = max(g.From, cut); g.From < g.Until {
			left = append(left, g)
		}
	}
	l.Gaps = left
}

// Decide counts what shards lack of a slot below the start that was decided, by what they say
// that they have of it.
func (l *lostUpdates) Decide(slot int, start perdure.Clock, fences []words.Fence) (loss lossReport) {
	for i := range fences {
		l.Lose(gap{perdure.ShardID(i), perdure.Slot(slot), fences[i].Counts.Staged, start}, &loss)
	}
	return loss
}

// Halve counts what shards lack of a slot below its start where a shard that dies counts all that
// it had anyway: there are no gaps.
func (l *lostUpdates) Halve(start perdure.Clock, fences []words.Fence) {
	for i := range fences {
		l.Count(i, int64(max(0, start-fences[i].Counts.Staged)))
	}
}

// slotGaps is what is recorded of a slot of such a job.
type slotGaps struct {
	// Begun is where its last process began: nobody begins below it.
	Begun perdure.Clock `json:"begun,omitempty"`
	// Short are shards that do not know how far it had come, while its fate is to be decided.
	Short []perdure.ShardID `json:"short,omitempty"`
	// Former is when it took part before, where not all of that was in a checkpoint.
	Former []words.Span `json:"former,omitempty"`
}

// Doubt notes that a shard does not know how far the slot had come.
func (s *slotGaps) Doubt(shard int) {
	if id := perdure.ShardID(shard); !slices.Contains(s.Short, id) {
		s.Short = append(slices.Clone(s.Short), id)
	}
}

// Decided notes where its next process begins.
func (s *slotGaps) Decided(start perdure.Clock) { s.Begun, s.Short = start, nil }

// Restore counts what a shard lacks for good that is restored from the newest checkpoint, of a
// slot: what its processes had done before its start, and after the checkpoint. Is its fate not
// decided yet, the shard does not know how far it had come.
func (l *lostUpdates) Restore(shard, slot int, s *slotGaps, v *words.View) (loss lossReport) {
	lose := func(term words.Span, until perdure.Clock) {
		l.Lose(gap{perdure.ShardID(shard), perdure.Slot(slot), term.Clamp(v.Durable), until}, &loss)
	}
	for _, term := range s.Former {
		lose(term, term.Until)
	}
	switch sl := &v.Slots[slot]; {
	case sl.Incarnation == 0:
	case sl.Decided:
		lose(sl.Span, sl.Start)
	default:
		s.Doubt(shard)
	}
	return loss
}
