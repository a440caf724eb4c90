package sim

import (
	"cmp"
	"slices"
	"sync"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// bases judges the bases with which lost shards go on: each is what slots were acknowledged, or
// what the rows have. What a living slot was not acknowledged it sends again, so that it is not
// lost; what was counted as lost once is never waited for again. Only slots of which no process
// has died are judged: of others nobody may know. Under two-step clocks all go on from what one of
// the dead was acknowledged, but nobody from a clock that it has not begun. All methods of a nil one
// do nothing.
type bases struct {
	twoStep bool

	mu     sync.Mutex
	shards []based
	bad    error // the first base that breaks a promise
}

// based is what a shard may go on from.
type based struct {
	acked []perdure.Clock // by slot: the most that its process was acknowledged
	has   []perdure.Clock // by slot: what the rows have with which the shard begins
	epoch perdure.Epoch   // of the newest base
	base  []perdure.Clock // which it is
}

func newBases(job perdure.JobSpec, slots int) *bases {
	b := &bases{twoStep: job.Consistency.TwoStep(), shards: make([]based, job.Shards)}
	for i := range b.shards {
		b.shards[i].acked = make([]perdure.Clock, slots)
	}
	return b
}

// heard takes over what a shard has acknowledged to a slot's process.
func (b *bases) heard(slot perdure.Slot, shard perdure.ShardID, applied perdure.Clock) {
	if b == nil || slot < 0 || int(shard) >= len(b.shards) {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	acked := &b.shards[shard].acked[slot]
	*acked = max(*acked, applied)
}

// has takes over what the rows have with which a shard begins.
func (b *bases) has(shard perdure.ShardID, applied []perdure.Clock) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.shards[shard].has = applied
}

// saved takes over a view that was recorded. died are the slots of which a process has; begun says
// after which clock nobody has begun any of a slot's.
func (b *bases) saved(v *words.View, died map[perdure.Slot]bool, begun func(slot int) perdure.Clock) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range v.Shards {
		sv, s := &v.Shards[i], &b.shards[i]
		if !sv.Lost || sv.Base == nil || s.epoch == sv.Epoch || b.bad != nil {
			continue
		}
		if b.bad = b.judge(v, i, died, begun); b.bad == nil {
			s.epoch, s.base = sv.Epoch, sv.Base
		}
	}
}

// judge judges a base of a shard.
func (b *bases) judge(
	v *words.View, shard int, died map[perdure.Slot]bool, begun func(slot int) perdure.Clock,
) error {
	s, base := &b.shards[shard], v.Shards[shard].Base
	unknown := b.twoStep && len(died) > 0
	most := make([]perdure.Clock, len(base))
	for p := range base {
		sl := &v.Slots[p]
		if most[p] = max(s.acked[p], sl.Start, sl.From, v.Cut); sl.Left {
			most[p] = max(most[p], sl.Until)
		}
		if p < len(s.has) {
			most[p] = max(most[p], s.has[p])
		}
	}
	for p, n := range base {
		might := most[p]
		switch {
		case unknown:
			might = max(might, begun(p))
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

func (b *bases) broken() error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.bad
}

// Acked takes over what a shard has acknowledged to a slot's process.
func (h *History) Acked(slot perdure.Slot, shard perdure.ShardID, applied perdure.Clock) {
	h.by.bases.heard(slot, shard, applied)
}

// Judge returns the first promise that something which was recorded breaks, however the job
// ended; if none does, how it ended.
func (h *History) Judge(ended error) error {
	if h.by.lines != nil {
		if err := h.by.lines.broken(); err != nil {
			return err
		}
	}
	return cmp.Or(h.by.bases.broken(), ended)
}
