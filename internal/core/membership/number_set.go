package membership

import "slices"

// numberSet is a set of numbers. Iterating over it costs only its current size, whatever it held before; a Go map never
// shrinks. The zero numberSet is empty.
type numberSet struct {
	list []int       // in any order
	at   map[int]int // positions in list
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

// Set adds or removes a number.
func (s *numberSet) Set(i int, in bool) {
	if in {
		s.Add(i)
	} else {
		s.Remove(i)
	}
}

// Clear removes all numbers.
func (s *numberSet) Clear() {
	for _, i := range s.list {
		delete(s.at, i)
	}
	s.list = s.list[:0]
}

// Sorted returns a new slice with the numbers in ascending order.
func (s *numberSet) Sorted() []int {
	list := slices.Clone(s.list)
	slices.Sort(list)
	return list
}

// All returns the numbers in any order. The slice is the set's own: it must not be changed, and is valid until the set
// changes.
func (s *numberSet) All() []int { return s.list }

// Len returns the size of the set.
func (s *numberSet) Len() int { return len(s.list) }

// cursor visits a number of items in turn until one fails a check. That item is checked first the next time, so that
// waiting for all of them costs little.
type cursor int

// All reports whether good returns true for all n items.
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
