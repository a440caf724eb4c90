package sim

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
)

// Next is the state from which a run resumes an earlier one.
type Next struct {
	Begin   membership.JobRecord
	Disk    *disk.Memory
	applied [][]perdure.Clock // by shard, if updates are logged: number of each slot's clocks it has
}

// earlier is what a History knows about the run that its own resumes.
type earlier struct {
	succeeded []bool        // by slot: one of its processes may have died before the run ended
	came      perdure.Clock // upper bound for every shard's MinClock
	// By shard and slot, if updates are logged: the clocks that the shard had, and the generation of each.
	before [][]map[perdure.Clock]perdure.Generation
}

// logged counts the updates of one slot to one shard that an update log has acknowledged.
type logged struct {
	by      perdure.Incarnation
	updates perdure.Clock // all clocks below it are logged
	ticks   perdure.Clock
}

// Logged records an entry that an update log has acknowledged.
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
	case f.Kind == wire.KindUpdate && f.Part+1 == f.Parts: // the last part: parts flushed early do not carry the total
		at.updates = max(at.updates, f.Until())
	case f.Kind == wire.KindTick:
		at.ticks = max(at.ticks, f.Until())
	}
}

// generation returns the generation of a clock whose update a shard's rows contain.
func (h *History) generation(shard perdure.ShardID, slot int, c perdure.Clock) perdure.Generation {
	if h.before != nil {
		if g, had := h.before[shard][slot][c]; had {
			return g
		}
	}
	return h.started[slot][c]
}
