package membership

import "slices"

// numberSet holds numbers. To go over them costs what it holds now, whatever it held
// before: a map that was large once stays so. The zero Set is empty.
type numberSet struct {
	list []int       // in any order
	at   map[int]int // where in list
}

// Has reports whether a number is in the set.
func (s *numberSet) Has(i int) bool {
	_, there := s.at[i]
	return there
}

// Add adds a number.
func (s *numberSet) Add(i int) {
	if s.Has(i) {
		return
	}
	if s.at == nil {
		s.at = map[int]int{}
	}
	s.at[i] = len(s.list)
	s.list = append(s.list, i)
}

// Remove removes a number.
func (s *numberSet) Remove(i int) {
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

// Put adds a number, or removes it.
func (s *numberSet) Put(i int, in bool) {
	if in {
		s.Add(i)
	} else {
		s.Remove(i)
	}
}

// Clear removes all.
func (s *numberSet) Clear() {
	for _, i := range s.list {
		delete(s.at, i)
	}
	s.list = s.list[:0]
}

// Sorted returns what is in the set, in order, in memory of its own.
func (s *numberSet) Sorted() []int {
	list := slices.Clone(s.list)
	slices.Sort(list)
	return list
}

// All returns what is in the set, in any order. It is the set's own memory: not to be
// changed, and good until the set changes.
func (s *numberSet) All() []int { return s.list }

// Len returns how many numbers there are.
func (s *numberSet) Len() int { return len(s.list) }

// cursor goes round over a number of things until one is found wanting. That one is the
// first to be looked at the next time, so that waiting for all of them costs little.
type cursor int

// All reports whether all n are good.
func (at *cursor) All(n int, good func(i int) bool) bool {
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
