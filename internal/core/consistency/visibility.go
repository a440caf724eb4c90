package consistency

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
)

// MaySend reports whether a slot may send its update of clock c under vap:V. norm
// is the largest absolute value, over all values of the table, of the sum of what
// its updates in transit and this one do to it; alone says that none is in
// transit. The sum stays at or below V/√(c+1) (ESSP paper, section 3), but for an
// update that alone exceeds it: that one goes alone.
func MaySend(m perdure.Consistency, c perdure.Clock, norm float64, alone bool) bool {
	return m.Kind != perdure.VAP || alone || norm <= m.Bound/math.Sqrt(float64(c)+1)
}

// Visibility says, for one shard, how many of each slot's clocks every active
// slot can see: they are in whatever it may read from its cache or by a Get. An
// update is in transit until then.
//
// The shard numbers its states by seq. Of each slot it knows a state that all its
// cached rows are at least as new as: the one it last said it had taken over.
type Visibility struct {
	slots []viewer
}

type viewer struct {
	inactive bool   // nobody speaks for it
	has      uint64 // all that it may read from its cache is of this state or newer
	empty    bool   // it has none

	seen   perdure.Clock // of its own clocks
	unseen []mark        // its clocks that are applied and not seen by all, in order
}

// mark says that a slot's clocks < clock are in the states from seq on.
type mark struct {
	seq   uint64
	clock perdure.Clock
}

// NewVisibility begins a life of a shard with the given applied vector and state.
// What slots have cached of its former life is not known until they open it.
func NewVisibility(applied []perdure.Clock, seq uint64) *Visibility {
	v := &Visibility{slots: make([]viewer, len(applied))}
	for i, clock := range applied {
		v.slots[i].unseen = []mark{{seq, clock}}
	}
	return v
}

// Grow makes room for the slots of a longer applied vector, as of state seq. Nobody
// speaks for them yet. What they have cached of a former life of the shard, which may
// have begun anew from before they joined, is not known until they open it.
func (v *Visibility) Grow(applied []perdure.Clock, seq uint64) {
	for i := len(v.slots); i < len(applied); i++ {
		v.slots = append(v.slots, viewer{inactive: true, unseen: []mark{{seq, applied[i]}}})
	}
}

// Applied notes that an update of a slot's clock made state seq.
func (v *Visibility) Applied(slot perdure.Slot, clock perdure.Clock, seq uint64) {
	s := &v.slots[slot]
	s.unseen = append(s.unseen, mark{seq, clock + 1})
}

// Opened notes that a slot has begun anew: it reads nothing of this shard from its
// cache.
func (v *Visibility) Opened(slot perdure.Slot) { v.slots[slot].empty = true }

// Answered notes that a slot is being sent rows of state seq that it will cache.
func (v *Visibility) Answered(slot perdure.Slot, seq uint64) {
	if s := &v.slots[slot]; s.empty {
		s.empty, s.has = false, seq
	}
}

// Saw notes a slot's word that all it has cached is of state seq or newer.
func (v *Visibility) Saw(slot perdure.Slot, seq uint64) {
	s := &v.slots[slot]
	s.has = max(s.has, seq)
}

// SetActive notes whether somebody speaks for a slot. Others' updates do not wait
// for one that nobody speaks for.
func (v *Visibility) SetActive(slot perdure.Slot, active bool) { v.slots[slot].inactive = !active }

// Seen returns how many of a slot's clocks all other active slots can see. It
// never falls.
func (v *Visibility) Seen(slot perdure.Slot) perdure.Clock {
	least := uint64(math.MaxUint64)
	for i := range v.slots {
		if s := &v.slots[i]; perdure.Slot(i) != slot && !s.inactive && !s.empty {
			least = min(least, s.has)
		}
	}
	s, n := &v.slots[slot], 0
	for n < len(s.unseen) && s.unseen[n].seq <= least {
		s.seen = max(s.seen, s.unseen[n].clock)
		n++
	}
	s.unseen = slices.Delete(s.unseen, 0, n)
	return s.seen
}
