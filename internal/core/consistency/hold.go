package consistency

import (
	"slices"

	"github.com/perdure/perdure"
)

// Hold is the part of a Sequencer for cuts by slot, which have another clock for each slot. During a hold no update is
// applied, although updates are staged and ticked. CutAt then makes Next return the updates of the cut, and Set(0) ends
// the hold.
type Hold struct {
	in     *Sequencer
	number uint64          // of the current hold; 0: none
	upTo   []perdure.Clock // by slot: the cut that is being made; nil: it is not known yet
}

// Number returns the number of the current hold; 0: none.
func (h *Hold) Number() uint64 { return h.number }

// Set starts the hold with a number, or ends the current one: 0.
func (h *Hold) Set(number uint64) {
	h.in.order.forget()
	h.number, h.upTo = number, nil
}

// CutAt makes Next return all updates below a clock of each slot, and none of later clocks until the hold ends. It
// returns false and changes nothing if the shard has passed the cut, or if any of these updates is missing.
func (h *Hold) CutAt(upTo []perdure.Clock) bool {
	in := h.in
	if len(upTo) != len(in.applied) {
		return false
	}
	for slot, applied := range in.applied {
		passed := applied > upTo[slot] || in.slots[slot].stagedBefore(applied, upTo[slot]) < 0
		if passed && !in.mutations.Cuts {
			return false
		}
	}
	h.Set(max(h.number, 1))
	h.upTo = slices.Clone(upTo)
	for slot, applied := range in.applied {
		s := &in.slots[slot]
		for _, u := range s.pending[:max(0, s.stagedBefore(applied, upTo[slot]))] {
			u.ticked = true
		}
	}
	return true
}

// holdsBack reports whether the hold keeps a slot's update of a clock from being applied.
func (h *Hold) holdsBack(slot int, clock perdure.Clock) bool {
	return h.number > 0 && (h.upTo == nil || clock >= h.upTo[slot]) && !h.in.mutations.Cuts
}

// stagedBefore returns how many pending updates are of clocks < until, or -1 if one of them is missing or not complete,
// or also contains later clocks.
func (s *slotQueue) stagedBefore(applied, until perdure.Clock) int {
	next := applied
	for n, u := range s.pending {
		switch {
		case next >= until:
			return n
		case !u.complete() || u.until() > until:
			return -1
		}
		next = u.until()
	}
	if next < until {
		return -1
	}
	return len(s.pending)
}
