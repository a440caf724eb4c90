package slotstate

import (
	"maps"

	"github.com/perdure/perdure"
)

// LiveSet collects which states in the store may still be needed at one moment. A state is garbage, permanently, if all
// of the following hold:
//
//  1. Every current process that holds the slot's home shard has reported its states (AddReports), so every state that
//     the shard may continue with is known.
//  2. None of them has the state: not in its rows, in a file being written, or in a written file (Retain). No
//     checkpoint that is retained or being published names it (also Retain).
//  3. It is older than the newest state that each of them has received, or it belongs to an abandoned generation.
//
// Garbage stays garbage for the following reasons. A process can only send states that are newer than all those
// received from it: it numbers its states, and later processes of a slot have higher incarnations. A restarted shard
// has the states that a checkpoint names. Updates resent to it contain no state that the same sender has superseded,
// unless a checkpoint may be due between the two (see package outbox), and then the shard holds it. An update log is
// read to its end before the shard reports anything.
type LiveSet struct {
	generation perdure.Generation
	names      map[string]struct{}
	slots      map[perdure.Slot]slotReports
}

// slotReports summarizes the states that all holders of a slot's home shard have received.
type slotReports struct {
	oldest Key  // the oldest of their newest states
	none   bool // a holder has no state that is in the store
}

// NewLiveSet returns an empty LiveSet.
func NewLiveSet(generation perdure.Generation) *LiveSet {
	return &LiveSet{generation: generation, names: map[string]struct{}{}, slots: map[perdure.Slot]slotReports{}}
}

// Retain records states that are needed.
func (h *LiveSet) Retain(names ...string) {
	for _, n := range names {
		h.names[n] = struct{}{}
	}
}

// AddReports records the reports of all holders of a shard. newest lists, for each holder, the names of the newest
// states in its rows. slots are those whose home is the shard.
func (h *LiveSet) AddReports(slots []perdure.Slot, newest [][]string) {
	for _, s := range slots {
		h.slots[s] = slotReports{none: len(newest) == 0}
	}
	of := map[perdure.Slot]int{}
	for _, names := range newest {
		h.Retain(names...)
		for _, name := range names {
			k, ok := ParseName(name)
			t, home := h.slots[k.Slot]
			if !ok || !home {
				continue
			}
			if of[k.Slot]++; of[k.Slot] == 1 || t.oldest.After(k) {
				t.oldest = k
			}
			h.slots[k.Slot] = t
		}
	}
	for _, s := range slots {
		if of[s] < len(newest) {
			h.slots[s] = slotReports{none: true}
		}
	}
}

// Supersede records states that all holders of their slots' home shards have received, whatever is in their rows now: a
// state may also travel with an update, and then no report names an object.
func (h *LiveSet) Supersede(names ...string) {
	for _, name := range names {
		if k, ok := ParseName(name); ok && h.slots[k.Slot].none {
			h.slots[k.Slot] = slotReports{oldest: k}
		}
	}
}

// Any reports whether any state is known to be needed.
func (h *LiveSet) Any() bool { return len(h.names) > 0 }

// Same reports whether h and other contain the same knowledge.
func (h *LiveSet) Same(other *LiveSet) bool {
	return h.generation == other.generation && maps.Equal(h.names, other.names) && maps.Equal(h.slots, other.slots)
}

// Garbage returns the given names whose objects will never be needed again. Programs delete their drafts themselves.
func (h *LiveSet) Garbage(names []string) (garbage []string) {
	for _, name := range names {
		k, ok := ParseName(name)
		t, received := h.slots[k.Slot]
		if _, held := h.names[name]; !ok || held || !received || k.IsDraft() {
			continue
		}
		if k.Generation < h.generation || !t.none && t.oldest.After(k) {
			garbage = append(garbage, name)
		}
	}
	return garbage
}
