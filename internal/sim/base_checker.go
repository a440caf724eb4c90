package sim

import (
	"cmp"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// baseChecker checks the base that the coordinator records for each lost shard. A base is a vector with one clock per
// slot: the shard resumes there, and counts updates of earlier clocks as lost.
//
// A base must not exceed the clocks that the slot's process had acknowledged or that the restored rows contain. The
// live worker resends its unacknowledged updates, so these are not lost. Clocks that were once counted as lost must not
// be waited for again. Only slots whose processes have never died are judged; for the others, the acknowledged clocks
// are unknown. With two-step clocks, all shards resume after the clocks acknowledged to a dead process, but never at a
// clock that a slot has not begun. All methods are no-ops on a nil receiver.
type baseChecker struct {
	twoStep bool

	mu       sync.Mutex
	shards   []shardBase
	firstErr error // the first base that breaks a promise
}

// shardBase holds the bounds and the latest base of one shard.
type shardBase struct {
	acked    []perdure.Clock // by slot: the highest count acknowledged to its process
	restored []perdure.Clock // by slot: the clocks that the restored rows contain
	epoch    perdure.Epoch   // of the newest base
	base     []perdure.Clock // the newest base
}

func newBases(job perdure.JobSpec, slots int) *baseChecker {
	b := &baseChecker{twoStep: job.Consistency.TwoStep(), shards: make([]shardBase, job.Shards)}
	for i := range b.shards {
		b.shards[i].acked = make([]perdure.Clock, slots)
	}
	return b
}

// acked records that a shard has acknowledged a slot's clocks below applied.
func (b *baseChecker) acked(slot perdure.Slot, shard perdure.ShardID, applied perdure.Clock) {
	if b == nil || slot < 0 || int(shard) >= len(b.shards) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	acked := &b.shards[shard].acked[slot]
	*acked = max(*acked, applied)
}

// restored records the applied vector of the rows that a shard was restored from.
func (b *baseChecker) restored(shard perdure.ShardID, applied []perdure.Clock) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shards[shard].restored = applied
}

// checkView checks the bases in a view that was just recorded. died holds the slots that have lost a process. begun
// returns the clock after the last one that a slot has begun.
func (b *baseChecker) checkView(v *protocol.View, died map[perdure.Slot]bool, started func(slot int) perdure.Clock) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range v.Shards {
		sv, s := &v.Shards[i], &b.shards[i]
		if !sv.Lost || sv.Base == nil || s.epoch == sv.Epoch || b.firstErr != nil {
			continue
		}
		if b.firstErr = b.checkBase(v, i, died, started); b.firstErr == nil {
			s.epoch, s.base = sv.Epoch, sv.Base
		}
	}
}

// checkBase checks the base of one shard.
func (b *baseChecker) checkBase(
	v *protocol.View, shard int, died map[perdure.Slot]bool, started func(slot int) perdure.Clock,
) error {
	s, base := &b.shards[shard], v.Shards[shard].Base
	unknown := b.twoStep && len(died) > 0
	most := make([]perdure.Clock, len(base))
	for p := range base {
		sl := &v.Slots[p]
		if most[p] = max(s.acked[p], sl.Start, sl.From, v.Cut); sl.Left {
			most[p] = max(most[p], sl.Until)
		}
		if p < len(s.restored) {
			most[p] = max(most[p], s.restored[p])
		}
	}
	for p, n := range base {
		might := most[p]
		switch {
		case unknown:
			might = max(might, started(p))
		case b.twoStep:
			might = slices.Max(most)
		}
		switch {
		case died[perdure.Slot(p)]:
		case n > might:
			return violated("shard %d counts slot %d's clocks below %d as lost, and those from %d on are sent again",
				shard, p, n, might)
		case !unknown && p < len(s.base) && n < s.base[p]:
			return violated("shard %d waits for slot %d from clock %d on, after it counted those below %d as lost",
				shard, p, n, s.base[p])
		}
	}
	return nil
}

func (b *baseChecker) violation() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.firstErr
}

// Acked records that a shard has acknowledged a slot's clocks below applied.
func (h *History) Acked(slot perdure.Slot, shard perdure.ShardID, applied perdure.Clock) {
	h.aux.bases.acked(slot, shard, applied)
}

// Result returns the first recorded violation, however the job ended. Without a violation it returns ended.
func (h *History) Result(ended error) error {
	if h.aux.lineage != nil {
		if err := h.aux.lineage.violation(); err != nil {
			return err
		}
	}
	return cmp.Or(h.aux.bases.violation(), ended)
}
