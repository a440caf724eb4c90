package consistency

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
)

// turn remembers what MinClock and Next have found out, so that they need not look at all slots after each update: the
// cost of a clock then grows as the number of slots, and not as its square. Whatever may make a slot less ready than it
// was, or changes which slots take part, forgets it.
type turn struct {
	known bool
	least perdure.Clock // MinClock
	at    int           // how many slots, of those that MinClock is of, have that count

	// Where clocks are ticked: of the slots that take part in the round of clock least, those below ready may be
	// applied, and those below next were.
	ready, next int
	// Where clocks are not ticked: slots whose next update may have become ready, in order.
	stirred []int
}

// forget has the next call of MinClock or Next look at all slots.
func (t *turn) forget() { t.known = false }

// recall looks at all slots, unless the result is known.
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

// stir notes that the next update of a slot may have become ready, where clocks are not ticked.
func (t *turn) stir(slot int) {
	if at, is := slices.BinarySearch(t.stirred, slot); !is {
		t.stirred = slices.Insert(t.stirred, at, slot)
	}
}

// advance raises the count of a slot whose next update is given out.
func (in *Intake) advance(slot int, to perdure.Clock) {
	t := &in.turn
	counted := in.counts(slot)
	if counted && in.applied[slot] == t.least {
		t.at--
	}
	in.applied[slot] = to
	t.known = t.known && t.at > 0
}

// slot returns the slot whose update comes next; -1: none.
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

// round moves on to the next slot of the present round that is not done.
func (t *turn) round(in *Intake, at *int, done func(slot int) bool) {
	for *at < len(in.slots) && (in.applied[*at] != t.least || in.left(*at) || done(*at)) {
		*at++
	}
}
