package membership

import "github.com/perdure/perdure"

// clockCounts counts slots by their clocks and tracks the smallest clock. The zero value is empty.
type clockCounts struct {
	count map[perdure.Clock]int
	min   perdure.Clock // if count is not empty
}

// Move moves one slot from one clock to another. -1 stands for a slot that is not counted.
func (c *clockCounts) Move(from, to perdure.Clock) {
	if from == to {
		return
	}
	if c.count == nil {
		c.count, c.min = map[perdure.Clock]int{}, -1
	}
	if to >= 0 {
		c.count[to]++
	}
	if from >= 0 {
		if c.count[from]--; c.count[from] == 0 {
			delete(c.count, from)
		}
	}
	if c.count[c.min] == 0 || to >= 0 && to < c.min {
		c.min = -1
		for clock := range c.count {
			if c.min < 0 || clock < c.min {
				c.min = clock
			}
		}
	}
}

// Min returns the smallest clock of any slot; -1: no slot is counted.
func (c *clockCounts) Min() perdure.Clock {
	if c.count == nil {
		return -1
	}
	return c.min
}
