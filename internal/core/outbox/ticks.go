package outbox

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// Ticks decides when the slot's clocks are ticked: from then on every shard must apply them, whatever happens to this
// process. A clock is ticked when all shards have staged it. Under two-step clocks that is the current one, and Clock
// waits for it. Under atomic clocks the program continues meanwhile, so several clocks may be waiting for their ticks.
type Ticks struct {
	outbox *Outbox
	start  perdure.Clock // clocks below this were made by earlier processes of the slot
	reads  bool          // all shards have applied these

	// Under atomic clocks only.
	below  perdure.Clock // clocks below this are ticked
	behind int           // number of shards that have not staged more
}

// Ticks returns the ticks of the slot's clocks.
func (b *Outbox) Ticks() *Ticks { return &b.ticks }

// Start records that this process continues at a clock.
func (t *Ticks) Start(at perdure.Clock) {
	*t = Ticks{outbox: t.outbox, start: at, below: at}
	t.countBehind()
}

// Current ticks the current clock under two-step clocks, which must be Staged. The caller must then send Frame to each
// shard.
func (t *Ticks) Current() {
	t.outbox.step(tick)
	t.mark(t.outbox.clock, t.outbox.clock+1)
}

// Advance ticks, under atomic clocks, the clocks that all shards have staged. If it returns true, there are new ones,
// and the caller must send Frame to each shard.
func (t *Ticks) Advance() bool {
	b := t.outbox
	if b.jobView.mode != perdure.ClockAtomic || t.behind > 0 || b.phase == RolledBack {
		return false
	}
	below := b.clock
	for _, s := range b.shards {
		below = min(below, t.staged(s))
	}
	for again := true; again; { // updates that were merged for a shard count as a whole, so they are ticked as a whole
		again = false
		for _, s := range b.shards {
			if u := s.kept.from(below); len(u) > 0 && u[0].clock < below {
				below, again = u[0].clock, true
			}
		}
	}
	news := below > t.below
	if news {
		t.mark(t.below, below)
		t.below = below
	}
	t.countBehind()
	return news
}

// mark marks the updates of some clocks as ticked.
func (t *Ticks) mark(from, to perdure.Clock) {
	for _, s := range t.outbox.shards {
		for _, u := range s.kept.from(from) {
			if u.until() > to {
				break
			}
			u.phase = Ticked
		}
	}
}

// Frame returns the frame that announces the ticks to a shard or its stream. It returns false if none is needed,
// because updates that the head has not been sent yet will say that they are ticked.
func (t *Ticks) Frame(s *Shard, as wire.Header) (f wire.Frame, needed bool) {
	logs := t.outbox.jobView.logs()
	if t.outbox.jobView.mode == perdure.ClockTwoStep {
		return tickFrame(as, t.outbox.clock), logs || !s.hasUnsent
	}
	below := t.below
	if !logs {
		below = min(below, s.sentBelow)
	}
	return tickFrame(as, below-1), below > 0
}

// MayRead reports whether the rows that are read contain the updates of the slot's earlier processes. Under atomic
// clocks a cut may hold these back when the process starts. (Under two-step clocks reads need a MinClock, and otherwise
// the process starts where all shards are.)
func (t *Ticks) MayRead() bool {
	if view := &t.outbox.jobView; !t.reads {
		t.reads = view.mode != perdure.ClockAtomic || view.slot < 0 ||
			!slices.ContainsFunc(t.outbox.shards, func(s *Shard) bool { return s.counts.Applied < t.start })
	}
	return t.reads
}

// countBehind counts the shards that have staged no clock beyond those that are ticked.
func (t *Ticks) countBehind() {
	t.behind = 0
	for _, s := range t.outbox.shards {
		if t.staged(s) <= t.below {
			t.behind++
		}
	}
}

// staged returns how many of the slot's clocks a shard or its stream has completely.
func (t *Ticks) staged(s *Shard) perdure.Clock {
	if t.outbox.jobView.logs() {
		return s.stream.clocks
	}
	return s.counts.Staged
}

// stagedMore records that a shard may have staged more clocks than before.
func (t *Ticks) stagedMore(s *Shard, before perdure.Clock) {
	if before <= t.below && t.staged(s) > t.below {
		t.behind--
	}
}
