package agenda

import "github.com/perdure/perdure"

// Tally counts slots by their clocks, so that the least is known. The zero Tally has none.
type Tally struct {
	count map[perdure.Clock]int
	least perdure.Clock // where there are any
}

// Move counts a slot at another clock; -1: it was not counted, or is not any more.
func (t *Tally) Move(from, to perdure.Clock) {
	if from == to {
		return
	}
	if t.count == nil {
		t.count, t.least = map[perdure.Clock]int{}, -1
	}
	if to >= 0 {
		t.count[to]++
	}
	if from >= 0 {
		if t.count[from]--; t.count[from] == 0 {
			delete(t.count, from)
		}
	}
	if t.count[t.least] == 0 || to >= 0 && to < t.least {
		t.least = -1
		for clock := range t.count {
			if t.least < 0 || clock < t.least {
				t.least = clock
			}
		}
	}
}

// Least returns the least clock that a slot is at; -1: there are none.
func (t *Tally) Least() perdure.Clock {
	if t.count == nil {
		return -1
	}
	return t.least
}
