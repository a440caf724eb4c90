package consistency

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
)

// orderCache caches the results of MinClock and Next, so that they need not scan all slots after each update. The cost
// of a clock then grows with the number of slots, not with its square. Any event that may make a slot less ready, or
// that changes which slots participate, invalidates the cache.
type orderCache struct {
	known    bool
	minClock perdure.Clock // MinClock
	at       int           // number of slots included in MinClock that have exactly this count

	// Under two-step clocks: among the slots that participate in the round of clock least, those below ready may be
	// applied, and those below next have been.
	ready, next int
	// Otherwise: slots whose next update may have become ready, in order.
	candidates []int
}

// forget makes the next call of MinClock or Next scan all slots.
func (t *orderCache) forget() { t.known = false }

// refreshOrder scans all slots unless the result is cached.
func (in *Sequencer) refreshOrder() *orderCache {
	t := &in.order
	if t.known {
		return t
	}
	least, most := perdure.Clock(math.MaxInt64), perdure.Clock(0)
	*t = orderCache{known: true, candidates: t.candidates[:0]}
	for i, c := range in.applied {
		most = max(most, c)
		if in.counts(i) {
			switch {
			case c < least:
				least, t.at = c, 1
			case c == least:
				t.at++
			}
		}
		if !in.inRounds() && len(in.slots[i].pending) > 0 {
			t.candidates = append(t.candidates, i)
		}
	}
	t.minClock = min(least, most)
	return t
}

// counts reports whether MinClock includes a slot.
func (in *Sequencer) counts(slot int) bool {
	return !in.hasLeft(slot) && !(in.mutations.Joins && in.intervals[slot].From > 0)
}

// addCandidate records that the next update of a slot may have become ready. It is not used under two-step clocks.
func (t *orderCache) addCandidate(slot int) {
	if at, is := slices.BinarySearch(t.candidates, slot); !is {
		t.candidates = slices.Insert(t.candidates, at, slot)
	}
}

// advance raises the count of a slot whose next update is returned by Next.
func (in *Sequencer) advance(slot int, to perdure.Clock) {
	t := &in.order
	counted := in.counts(slot)
	if counted && in.applied[slot] == t.minClock {
		t.at--
	}
	in.applied[slot] = to
	t.known = t.known && t.at > 0
}

// slot returns the slot whose update comes next, or -1.
func (t *orderCache) slot(in *Sequencer) int {
	if !in.inRounds() {
		for len(t.candidates) > 0 {
			if in.ready(t.candidates[0]) {
				return t.candidates[0]
			}
			t.candidates = slices.Delete(t.candidates, 0, 1)
		}
		return -1
	}
	t.round(in, &t.ready, in.ready)
	if t.ready < len(in.slots) {
		return -1 // the round waits for this slot
	}
	t.round(in, &t.next, func(int) bool { return false })
	if t.next == len(in.slots) {
		return -1
	}
	return t.next
}

// round advances to the next slot of the current round that is not done.
func (t *orderCache) round(in *Sequencer, at *int, done func(slot int) bool) {
	for *at < len(in.slots) && (in.applied[*at] != t.minClock || in.hasLeft(*at) || done(*at)) {
		*at++
	}
}
