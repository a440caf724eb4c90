package consistency

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
)

// turn caches the results of MinClock and Next, so that they need not scan all slots after each update. The cost of a
// clock then grows with the number of slots, not with its square. Any event that may make a slot less ready, or that
// changes which slots participate, invalidates the cache.
type turn struct {
	known bool
	least perdure.Clock // MinClock
	at    int           // number of slots included in MinClock that have exactly this count

	// With ticks: among the slots that participate in the round of clock least, those below ready may be applied, and
	// those below next have been.
	ready, next int
	// Without ticks: slots whose next update may have become ready, in order.
	stirred []int
}

// forget makes the next call of MinClock or Next scan all slots.
func (t *turn) forget() { t.known = false }

// recall scans all slots unless the result is cached.
func (in *Intake) recall() *turn {
	t := &in.turn
	if t.known {
		return t
	}
	least, most := perdure.Clock(math.MaxInt64), perdure.Clock(0)
	*t = turn{known: true, stirred: t.stirred[:0]}
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
		if !in.twoStep && len(in.slots[i].pending) > 0 {
			t.stirred = append(t.stirred, i)
		}
	}
	t.least = min(least, most)
	return t
}

// counts reports whether MinClock includes a slot.
func (in *Intake) counts(slot int) bool {
	return !in.left(slot) && !(in.weak.Joins && in.spans[slot].From > 0)
}

// stir records that the next update of a slot may have become ready. It is used without ticks only.
func (t *turn) stir(slot int) {
	if at, is := slices.BinarySearch(t.stirred, slot); !is {
		t.stirred = slices.Insert(t.stirred, at, slot)
	}
}

// advance raises the count of a slot whose next update is returned by Next.
func (in *Intake) advance(slot int, to perdure.Clock) {
	t := &in.turn
	counted := in.counts(slot)
	if counted && in.applied[slot] == t.least {
		t.at--
	}
	in.applied[slot] = to
	t.known = t.known && t.at > 0
}

// slot returns the slot whose update comes next, or -1.
func (t *turn) slot(in *Intake) int {
	if !in.twoStep {
		for len(t.stirred) > 0 {
			if in.ready(t.stirred[0]) {
				return t.stirred[0]
			}
			t.stirred = slices.Delete(t.stirred, 0, 1)
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
func (t *turn) round(in *Intake, at *int, done func(slot int) bool) {
	for *at < len(in.slots) && (in.applied[*at] != t.least || in.left(*at) || done(*at)) {
		*at++
	}
}
