package membership

import (
	"slices"

	"github.com/perdure/perdure"
)

// set holds numbers. To go over them costs what it holds now, whatever it held
// before: a map that was large once stays so. The zero set is empty.
type set struct {
	list []int       // in any order
	at   map[int]int // where in list
}

func (s *set) has(i int) bool {
	_, there := s.at[i]
	return there
}

func (s *set) add(i int) {
	if s.has(i) {
		return
	}
	if s.at == nil {
		s.at = map[int]int{}
	}
	s.at[i] = len(s.list)
	s.list = append(s.list, i)
}

func (s *set) remove(i int) {
	at, there := s.at[i]
	if !there {
		return
	}
	last := len(s.list) - 1
	moved := s.list[last]
	s.list[at], s.at[moved] = moved, at
	s.list = s.list[:last]
	delete(s.at, i)
}

// put adds a number, or removes it.
func (s *set) put(i int, in bool) {
	if in {
		s.add(i)
	} else {
		s.remove(i)
	}
}

func (s *set) clear() {
	for _, i := range s.list {
		delete(s.at, i)
	}
	s.list = s.list[:0]
}

// sorted returns what is in the set, in order, in memory of its own.
func (s *set) sorted() []int {
	list := slices.Clone(s.list)
	slices.Sort(list)
	return list
}

// tally counts slots by their clocks.
type tally struct {
	count map[perdure.Clock]int
	least perdure.Clock // -1: there are none
}

// move counts a slot at another clock; -1: it was not counted, or is not any more.
func (t *tally) move(from, to perdure.Clock) {
	if from == to {
		return
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

// cursor goes round over so many, until one is found wanting. That one is the first
// to be looked at the next time, so that waiting for all of them costs little.
type cursor int

// all reports whether all n are good.
func (at *cursor) all(n int, good func(i int) bool) bool {
	for range n {
		if *at >= cursor(n) {
			*at = 0
		}
		if !good(int(*at)) {
			return false
		}
		*at++
	}
	return true
}
