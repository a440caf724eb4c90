package protocol

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// ViewDelta is the change of a view from revision Base to revision Revision: the changed shards and slots, by number,
// and all fields that do not belong to one shard or slot. Its size therefore depends on the size of the change and not
// of the job. It holds the new values of everything that was different at any time in between, never increments. So it
// gives the same result when applied to the view of revision Base or of any later revision.
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
	Hold       uint64              `json:"hold,omitempty"`
	Done       bool                `json:"done"`
	Tables     []perdure.TableSpec `json:"tables,omitempty"` // the complete list, if tables were added
	Shards     []ShardChange       `json:"shards,omitempty"` // by number
	Slots      []SlotChange        `json:"slots,omitempty"`  // by number; new slots come last
	Roster     uint64              `json:"roster,omitempty"`

	CutClocks     SlotClocks `json:"cut_clocks,omitempty"`
	DurableClocks SlotClocks `json:"durable_clocks,omitempty"`
	NamedClocks   SlotClocks `json:"named_clocks,omitempty"`
}

// ShardChange is a changed shard in a ViewDelta, with its new value.
type ShardChange struct {
	Shard perdure.ShardID `json:"shard"`
	ShardView
}

// SlotChange is a changed slot in a ViewDelta, with its new value.
type SlotChange struct {
	Slot perdure.Slot `json:"slot"`
	SlotView
}

// DeltaOf returns the changes to view v since revision base, given the changed shards and slots in ascending order, and
// whether tables were added. The result shares memory with v.
func DeltaOf(v *View, base uint64, tables bool, shards []perdure.ShardID, slots []perdure.Slot) ViewDelta {
	d := ViewDelta{
		Base: base, Revision: v.Revision, Generation: v.Generation,
		Cut: v.Cut, End: v.End, Tentative: v.Tentative, Pause: v.Pause, Durable: v.Durable, Named: v.Named,
		Hold: v.Hold, Done: v.Done, Roster: v.Roster,
		CutClocks: v.CutClocks, DurableClocks: v.DurableClocks, NamedClocks: v.NamedClocks,
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

// Apply returns the result of applying d to v. It does not modify v; the result shares unchanged memory with v. It
// returns ErrViewGap if d does not fit: if Base is later than v, a change was missed; if the shape differs, d belongs
// to another job.
func (d *ViewDelta) Apply(v *View) (View, error) {
	if len(v.Shards) == 0 {
		return View{}, fmt.Errorf("%w: no view received yet", ErrViewGap)
	}
	if d.Base > v.Revision || d.Revision <= v.Revision {
		return View{}, fmt.Errorf("%w: the view has revision %d, but the delta is from %d to %d",
			ErrViewGap, v.Revision, d.Base, d.Revision)
	}
	if len(d.Tables) > 0 && (len(d.Tables) < len(v.Tables) || !slices.Equal(d.Tables[:len(v.Tables)], v.Tables)) {
		return View{}, fmt.Errorf("%w: the delta lacks some of the %d existing tables", ErrViewGap, len(v.Tables))
	}
	next := *v
	next.Revision, next.Generation, next.Cut, next.End = d.Revision, d.Generation, d.Cut, d.End
	next.Tentative = d.Tentative
	next.Pause, next.Durable, next.Named, next.Done, next.Roster = d.Pause, d.Durable, d.Named, d.Done, d.Roster
	next.Hold, next.CutClocks = d.Hold, d.CutClocks
	next.DurableClocks, next.NamedClocks = d.DurableClocks, d.NamedClocks
	if len(d.Tables) > 0 {
		next.Tables = d.Tables
	}
	if len(d.Shards) > 0 {
		next.Shards = slices.Clone(v.Shards)
	}
	for i := range d.Shards {
		s := &d.Shards[i]
		if s.Shard < 0 || int(s.Shard) >= len(next.Shards) {
			return View{}, fmt.Errorf("%w: invalid shard %d of %d", ErrViewGap, s.Shard, len(next.Shards))
		}
		next.Shards[s.Shard] = s.ShardView
	}
	if len(d.Slots) > 0 {
		next.Slots = slices.Clone(v.Slots)
	}
	for i := range d.Slots {
		s := &d.Slots[i]
		if s.Slot >= 0 && s.Slot < perdure.MaxSlots && int(s.Slot) == len(next.Slots) {
			next.Slots = append(next.Slots, SlotView{}) // the slot has joined
		}
		if s.Slot < 0 || int(s.Slot) >= len(next.Slots) {
			return View{}, fmt.Errorf("%w: invalid slot %d of %d", ErrViewGap, s.Slot, len(next.Slots))
		}
		next.Slots[s.Slot] = s.SlotView
	}
	return next, nil
}
