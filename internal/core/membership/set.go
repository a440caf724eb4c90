package membership

import "slices"

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
