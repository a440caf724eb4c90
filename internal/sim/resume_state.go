package sim

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/membership"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/wire"
)

// ResumeState is the state from which a run resumes an earlier one.
type ResumeState struct {
	JobRecord membership.JobRecord
	Disk      *disk.Memory
	applied   [][]perdure.Clock // by shard, if updates are logged: number of each slot's clocks it has
}

// priorRun is what a History knows about the run that its own resumes.
type priorRun struct {
	succeeded   []bool        // by slot: one of its processes may have died before the run ended
	maxMinClock perdure.Clock // upper bound for every shard's MinClock
	// By shard and slot, if updates are logged: the clocks that the shard had, and the generation of each.
	generations [][]map[perdure.Clock]perdure.Generation
}

// loggedUpdates counts the updates of one slot to one shard that an update log has acknowledged.
type loggedUpdates struct {
	incarnation perdure.Incarnation
	updates     perdure.Clock // all clocks below it are logged
	ticks       perdure.Clock
}

// Logged records an entry that an update log has acknowledged.
func (h *History) Logged(f *wire.Header) {
	if int(f.Shard) >= len(h.logged) || f.Slot < 0 || int(f.Slot) >= h.slots {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	at := &h.logged[f.Shard][f.Slot]
	if f.Incarnation < at.incarnation {
		return
	}
	if f.Incarnation > at.incarnation {
		*at = loggedUpdates{incarnation: f.Incarnation}
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
	if h.generations != nil {
		if g, had := h.generations[shard][slot][c]; had {
			return g
		}
	}
	return h.started[slot][c]
}
