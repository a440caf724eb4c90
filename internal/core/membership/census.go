package membership

import "github.com/perdure/perdure"

// clockCensus counts slots by their clocks, so that the least is known. The zero value has none.
type clockCensus struct {
	count map[perdure.Clock]int
	least perdure.Clock // where there are any
}

// Move counts a slot at another clock; -1: it was not counted, or is not any more.
func (c *clockCensus) Move(from, to perdure.Clock) {
	if from == to {
		return
	}
	if c.count == nil {
		c.count, c.least = map[perdure.Clock]int{}, -1
	}
	if to >= 0 {
		c.count[to]++
	}
	if from >= 0 {
		if c.count[from]--; c.count[from] == 0 {
			delete(c.count, from)
		}
	}
	if c.count[c.least] == 0 || to >= 0 && to < c.least {
		c.least = -1
		for clock := range c.count {
			if c.least < 0 || clock < c.least {
				c.least = clock
			}
		}
	}
}

// leastCount returns the least clock that a slot is at; -1: there are none.
func (c *clockCensus) Least() perdure.Clock {
	if c.count == nil {
		return -1
	}
	return c.least
}
