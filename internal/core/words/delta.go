package words

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// ViewDelta is what changed of a view after one revision and up to another: the shards
// and slots by their numbers, and all that is not of one shard or slot. So telling of a
// change costs as much as was changed, not as much as the job has. It holds whole
// values, never steps, of all that was another at any time in between: so it makes the
// same view of the one of revision Base and of any after it.
type ViewDelta struct {
	Base       uint64              `json:"base"`
	Revision   uint64              `json:"revision"`
	Generation perdure.Generation  `json:"generation"`
	Cut        perdure.Clock       `json:"cut"`
	End        perdure.Clock       `json:"end"`
	Tentative  bool                `json:"tentative,omitempty"`
	Pause      bool                `json:"pause"`
	Durable    perdure.Clock       `json:"durable"`
	Named      perdure.Clock       `json:"named,omitempty"`
	Done       bool                `json:"done"`
	Tables     []perdure.TableSpec `json:"tables,omitempty"` // all, if there have come more
	Shards     []ShardChange       `json:"shards,omitempty"` // by number
	Slots      []SlotChange        `json:"slots,omitempty"`  // by number; those that were not there before come last
	Roster     uint64              `json:"roster,omitempty"`
}

// ShardChange is a shard that a ViewDelta changes, as it is then.
type ShardChange struct {
	Shard perdure.ShardID `json:"shard"`
	ShardView
}

// SlotChange is a slot that a ViewDelta changes, as it is then.
type SlotChange struct {
	Slot perdure.Slot `json:"slot"`
	SlotView
}

// DeltaOf returns what has changed of a view after revision base: these shards and
// slots, in order, and, if tables says so, the tables. It shares memory with the view.
func DeltaOf(v *View, base uint64, tables bool, shards []perdure.ShardID, slots []perdure.Slot) ViewDelta {
	d := ViewDelta{
		Base: base, Revision: v.Revision, Generation: v.Generation,
		Cut: v.Cut, End: v.End, Tentative: v.Tentative, Pause: v.Pause, Durable: v.Durable, Named: v.Named,
		Done: v.Done, Roster: v.Roster,
	}
	if tables {
		d.Tables = v.Tables
	}
	for _, s := range shards {
		d.Shards = append(d.Shards, ShardChange{s, v.Shards[s]})
	}
	for _, s := range slots {
		d.Slots = append(d.Slots, SlotChange{s, v.Slots[s]})
	}
	return d
}

// Apply returns the view that a delta makes of one, which stays as it is; they share
// the memory of what is the same. It refuses with ErrViewGap a delta that does not fit:
// after a later revision some change was not heard of, and of another shape it is not
// of this job.
func (d *ViewDelta) Apply(v *View) (View, error) {
	if len(v.Shards) == 0 {
		return View{}, fmt.Errorf("%w: no view is known yet", ErrViewGap)
	}
	if d.Base > v.Revision || d.Revision <= v.Revision {
		return View{}, fmt.Errorf("%w: revision %d is known, and what changed after %d and up to %d is told",
			ErrViewGap, v.Revision, d.Base, d.Revision)
	}
	if len(d.Tables) > 0 && (len(d.Tables) < len(v.Tables) || !slices.Equal(d.Tables[:len(v.Tables)], v.Tables)) {
		return View{}, fmt.Errorf("%w: it has not the %d tables that there are", ErrViewGap, len(v.Tables))
	}
	next := *v
	next.Revision, next.Generation, next.Cut, next.End = d.Revision, d.Generation, d.Cut, d.End
	next.Tentative = d.Tentative
	next.Pause, next.Durable, next.Named, next.Done, next.Roster = d.Pause, d.Durable, d.Named, d.Done, d.Roster
	if len(d.Tables) > 0 {
		next.Tables = d.Tables
	}
	if len(d.Shards) > 0 {
		next.Shards = slices.Clone(v.Shards)
	}
	for i := range d.Shards {
		s := &d.Shards[i]
		if s.Shard < 0 || int(s.Shard) >= len(next.Shards) {
			return View{}, fmt.Errorf("%w: it changes shard %d of %d", ErrViewGap, s.Shard, len(next.Shards))
		}
		next.Shards[s.Shard] = s.ShardView
	}
	if len(d.Slots) > 0 {
		next.Slots = slices.Clone(v.Slots)
	}
	for i := range d.Slots {
		s := &d.Slots[i]
		if s.Slot >= 0 && s.Slot < perdure.MaxSlots && int(s.Slot) == len(next.Slots) {
			next.Slots = append(next.Slots, SlotView{}) // it has joined
		}
		if s.Slot < 0 || int(s.Slot) >= len(next.Slots) {
			return View{}, fmt.Errorf("%w: it changes slot %d of %d", ErrViewGap, s.Slot, len(next.Slots))
		}
		next.Slots[s.Slot] = s.SlotView
	}
	return next, nil
}
