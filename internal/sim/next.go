package sim

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
)

// Next is what a run begins with that goes on from another one.
type Next struct {
	Begin   membership.Facts
	Disk    *disk.Memory
	applied [][]perdure.Clock // by shard, where updates are in a log: how many of each slot's clocks it has
}

// earlier is what a History has of the run that its own goes on from.
type earlier struct {
	succeeded []bool        // by slot: a process of it may have died before all did
	came      perdure.Clock // the most that any shard's MinClock can have been
	// By shard and slot, where updates are in a log: the clocks that the shard had, and of which generation each is.
	before [][]map[perdure.Clock]perdure.Generation
}

// logged is what an update log has acknowledged of a slot's updates to a shard.
type logged struct {
	by      perdure.Incarnation
	updates perdure.Clock // those of the clocks below it
	ticks   perdure.Clock
}

// Logged takes over what an update log has acknowledged.
func (h *History) Logged(f *wire.Header) {
	if int(f.Shard) >= len(h.logged) || f.Slot < 0 || int(f.Slot) >= h.slots {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	at := &h.logged[f.Shard][f.Slot]
	if f.Incarnation < at.by {
		return
	}
	if f.Incarnation > at.by {
		*at = logged{by: f.Incarnation}
	}
	switch {
	case f.Kind == wire.KindUpdate && f.Part+1 == f.Parts: // the last: those that leave early do not say how many
		at.updates = max(at.updates, f.Until())
	case f.Kind == wire.KindTick:
		at.ticks = max(at.ticks, f.Until())
	}
}

// generation is in which a clock was done of which a shard's rows have the update.
func (h *History) generation(shard perdure.ShardID, slot int, c perdure.Clock) perdure.Generation {
	if h.before != nil {
		if g, had := h.before[shard][slot][c]; had {
			return g
		}
	}
	return h.started[slot][c]
}
