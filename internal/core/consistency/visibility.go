package consistency

import (
	"math"
	"slices"

	"github.com/perdure/perdure"
)

// MaySend reports whether a slot may send its update of clock c under vap:V. norm is the largest absolute value, over
// all values of the table, of the sum of its updates in transit including this one. alone means that no other update is
// in transit. The sum stays at or below V/√(c+1) (ESSP paper, section 3). An update that exceeds this bound by itself
// is sent when it is alone.
func MaySend(m perdure.Consistency, c perdure.Clock, norm float64, alone bool) bool {
	return m.Kind != perdure.VAP || alone || norm <= m.Bound/math.Sqrt(float64(c)+1)
}

// Visibility tracks, for one shard, how many of each slot's clocks every active slot can see, because anything that it
// may read from its cache or with a Get contains them. Until then an update is in transit.
//
// The shard numbers its states by seq. For each slot it knows a state that no cached row of the slot is older than: the
// one that the slot last confirmed.
type Visibility struct {
	slots []viewer
}

type viewer struct {
	inactive bool   // no process speaks for it
	has      uint64 // everything that it may read from its cache is of this state or newer
	empty    bool   // it has no cached rows

	seen   perdure.Clock // how many of its own clocks are seen
	unseen []mark        // its clocks that are applied and not seen by all, in order
}

// mark says that a slot's clocks < clock are in the states from seq on.
type mark struct {
	seq   uint64
	clock perdure.Clock
}

// NewVisibility starts a life of a shard with the given applied vector and state. Rows that a slot has cached from a
// former life are unknown until the slot opens the shard.
func NewVisibility(applied []perdure.Clock, seq uint64) *Visibility {
	v := &Visibility{slots: make([]viewer, len(applied))}
	for i, clock := range applied {
		v.slots[i].unseen = []mark{{seq, clock}}
	}
	return v
}

// Grow adds the slots of a longer applied vector, as of state seq. No process speaks for them yet. They may have cached
// rows of a former life of the shard, which may have restarted from before they joined. These rows are unknown until
// the slots open the shard.
func (v *Visibility) Grow(applied []perdure.Clock, seq uint64) {
	for i := len(v.slots); i < len(applied); i++ {
		v.slots = append(v.slots, viewer{inactive: true, unseen: []mark{{seq, applied[i]}}})
	}
}

// Applied records that an update of a slot's clock resulted in state seq.
func (v *Visibility) Applied(slot perdure.Slot, clock perdure.Clock, seq uint64) {
	s := &v.slots[slot]
	s.unseen = append(s.unseen, mark{seq, clock + 1})
}

// Opened records that a slot has started over, and reads nothing of this shard from its cache.
func (v *Visibility) Opened(slot perdure.Slot) { v.slots[slot].empty = true }

// Answered records that a slot is being sent rows of state seq, which it will cache.
func (v *Visibility) Answered(slot perdure.Slot, seq uint64) {
	if s := &v.slots[slot]; s.empty {
		s.empty, s.has = false, seq
	}
}

// RecordConfirmed records a slot's confirmation that everything it has cached is of state seq or newer.
func (v *Visibility) RecordConfirmed(slot perdure.Slot, seq uint64) {
	s := &v.slots[slot]
	s.has = max(s.has, seq)
}

// SetActive records whether a process speaks for a slot. Others' updates do not wait for a slot without a process.
func (v *Visibility) SetActive(slot perdure.Slot, active bool) { v.slots[slot].inactive = !active }

// Seen returns how many of a slot's clocks all other active slots can see. It never decreases.
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
