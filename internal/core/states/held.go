package states

import (
	"maps"

	"github.com/perdure/perdure"
)

// Held is what is known, at one moment, of which states in the store somebody may still need. A
// state is garbage, now and for ever, where all of this holds:
//
//  1. every process that holds the slot's home shard, in its present life, has said what it has
//     (Heard): so it is known what the shard may go on with;
//  2. none of them has it, in its rows, in what it is writing, or in a file that it has written
//     (Hold); and no checkpoint that stays, or is being published, names it (Hold, too);
//  3. it is older than the newest that each of them has taken in, or of an abandoned generation.
//
// Why it is for ever. What a process may still send is newer than all that it was heard of: it counts
// what it saves, and later processes of a slot have higher incarnations. A shard that begins again has
// what a checkpoint names. What is sent to it again has no state that a later one of the same sender
// supersedes, unless a checkpoint may be due between the two (see package outbox), and in that case the
// shard holds it. And what is read of an update log is read to its end before anybody is told of it.
type Held struct {
	generation perdure.Generation
	names      map[string]struct{}
	slots      map[perdure.Slot]taken
}

// taken is what all holders of a slot's home shard have taken in.
type taken struct {
	oldest Key  // of what is the newest on one of them
	none   bool // one has nothing that is in the store
}

// NewHeld begins with nothing known.
func NewHeld(generation perdure.Generation) *Held {
	return &Held{generation: generation, names: map[string]struct{}{}, slots: map[perdure.Slot]taken{}}
}

// Hold notes states that are needed.
func (h *Held) Hold(names ...string) {
	for _, n := range names {
		h.names[n] = struct{}{}
	}
}

// Heard notes what all holders of a shard have taken in: newest has of each of them the names of the
// newest states that its rows come with. slots are those whose home the shard is.
func (h *Held) Heard(slots []perdure.Slot, newest [][]string) {
	for _, s := range slots {
		h.slots[s] = taken{none: len(newest) == 0}
	}
	of := map[perdure.Slot]int{}
	for _, names := range newest {
		h.Hold(names...)
		for _, name := range names {
			k, ok := ParseName(name)
			t, home := h.slots[k.Slot]
			if !ok || !home {
				continue
			}
			if of[k.Slot]++; of[k.Slot] == 1 || t.oldest.After(k) {
				t.oldest = k
			}
			h.slots[k.Slot] = t
		}
	}
	for _, s := range slots {
		if of[s] < len(newest) {
			h.slots[s] = taken{none: true}
		}
	}
}

// Any reports whether anything is known to lie in the store.
func (h *Held) Any() bool { return len(h.names) > 0 }

// Same reports whether the same is known.
func (h *Held) Same(other *Held) bool {
	return h.generation == other.generation && maps.Equal(h.names, other.names) && maps.Equal(h.slots, other.slots)
}

// Garbage returns which of the objects of those names nobody will ever need again.
func (h *Held) Garbage(names []string) (garbage []string) {
	for _, name := range names {
		k, ok := ParseName(name)
		t, heard := h.slots[k.Slot]
		if _, held := h.names[name]; !ok || held || !heard {
			continue
		}
		if k.Generation < h.generation || !t.none && t.oldest.After(k) {
			garbage = append(garbage, name)
		}
	}
	return garbage
}
