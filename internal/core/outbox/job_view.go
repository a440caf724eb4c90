package outbox

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/recovery"
)

// jobView is the part of the job and its current view that concerns updates.
type jobView struct {
	slot      perdure.Slot
	job       *perdure.JobSpec
	traits    recovery.Traits
	cuts      recovery.Schedule // including the cut named in the view
	view      protocol.View
	intervals []protocol.Interval

	// Cuts that were named, and that no checkpoint contains yet. A later one may be named before an earlier one is
	// durable.
	named []perdure.Clock

	mode perdure.ClockMode
	adds bool // the sum of two updates is equivalent to them
}

// setView handles a newer view.
func (t *jobView) setView(v protocol.View) {
	t.view, t.intervals, t.cuts.Named = v, v.Intervals(), v.Named
	if v.Named > 0 && !slices.Contains(t.named, v.Named) {
		t.named = append(t.named, v.Named)
	}
	t.named = slices.DeleteFunc(t.named, func(c perdure.Clock) bool { return c <= v.Durable })
	t.mode = t.job.ClockMode(v.Tables)
	t.adds = t.merges()
}

// merges reports whether the sum of two updates of this job is equivalent to the two updates.
func (t *jobView) merges() bool {
	if t.mode.Ticks() || t.job.Scales(t.view.Tables) && t.job.StaleScale != perdure.ScaleAverage {
		return false // ticks must not divide updates, and other scales depend on the age of each clock
	}
	return !slices.ContainsFunc(t.view.Tables, func(t perdure.TableSpec) bool {
		constant := t.Rule.Schedule == "" || t.Rule.Schedule == perdure.ScheduleConst
		rounded := t.Encoding != perdure.EncodingFloat32
		return t.Consistency.Kind == perdure.VAP || !t.Rule.Adds() || !constant || t.Evict > 0 || rounded
	})
}

// isCut reports whether there is a cut at a clock that no checkpoint contains yet.
func (t *jobView) isCut(c perdure.Clock) bool {
	return t.cuts.Has(c) && c > t.view.Durable || slices.Contains(t.named, c)
}

// begin returns the clock at which this slot starts a generation.
func (t *jobView) begin() perdure.Clock {
	if t.slot < 0 {
		return t.view.Cut
	}
	return t.view.StartClock(t.slot)
}

// end returns the clock at which this slot's work ends, or 0 if it is unknown.
func (t *jobView) end() perdure.Clock {
	if t.slot < 0 || int(t.slot) >= len(t.view.Slots) {
		return t.view.End
	}
	return t.view.EndClock(t.slot)
}

// logs reports whether updates go to an update log.
func (t *jobView) logs() bool { return t.traits.UsesLog() }

// saved returns the clock below which this slot's updates for a shard are in a checkpoint.
func (t *jobView) saved(shard perdure.ShardID) perdure.Clock {
	return recovery.SavedUpTo(&t.view, shard, t.slot)
}

// home returns the shard that keeps this slot's saved state.
func (t *jobView) home() perdure.ShardID { return placement.HomeShard(t.slot, len(t.view.Shards)) }

// scales reports whether servers scale updates by their age, and so need their origin.
func (t *jobView) scales() bool { return t.job.Scales(t.view.Tables) }
