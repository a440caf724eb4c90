package consistency

import (
	"bytes"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// State is the complete state of a Sequencer as plain data. A replica of the shard needs it in addition to the rows.
type State struct {
	TwoStep           bool                `json:"two_step"`
	Atomic            bool                `json:"atomic,omitempty"` // the mode is perdure.ClockAtomic
	Cut               perdure.Clock       `json:"cut"`
	Hold              uint64              `json:"hold,omitempty"`
	End               perdure.Clock       `json:"end"`
	Applied           []perdure.Clock     `json:"applied"`
	MembershipVersion uint64              `json:"roster,omitempty"`
	Intervals         []protocol.Interval `json:"spans"`
	Slots             []SlotState         `json:"slots"`
}

// SlotState is one slot's part of a State.
type SlotState struct {
	Incarnation perdure.Incarnation `json:"incarnation"`
	Decided     perdure.Incarnation `json:"carried"`
	Pending     []UpdateState       `json:"pending,omitempty"` // oldest first
}

// UpdateState is an update that is not applied yet, as far as it was received.
type UpdateState struct {
	Clock       perdure.Clock       `json:"clock"`
	Clocks      perdure.Clock       `json:"clocks,omitempty"` // number of clocks, starting at Clock; absent: one
	Incarnation perdure.Incarnation `json:"incarnation"`
	Of          int                 `json:"of"`
	Tick        bool                `json:"tick"`
	Ticked      bool                `json:"ticked"`
	Lost        bool                `json:"lost,omitempty"`
	Repeats     bool                `json:"repeats,omitempty"`
	Parts       [][]byte            `json:"-"`     // nil if not received yet
	Sizes       []int               `json:"sizes"` // sizes of the parts; -1: not received yet
}

// State returns a copy of the intake's state, including payloads.
func (in *Sequencer) State() State {
	st := State{
		TwoStep: in.inRounds(), Atomic: in.mode == perdure.ClockAtomic, Cut: in.cut, Hold: in.hold.number, End: in.end,
		Applied:           slices.Clone(in.applied),
		MembershipVersion: in.membershipVersion,
		Intervals:         slices.Clone(in.intervals),
	}
	for i := range in.slots {
		s := &in.slots[i]
		out := SlotState{Incarnation: s.incarnation, Decided: s.decided}
		for _, u := range s.pending {
			us := UpdateState{
				Clock: u.Clock, Clocks: u.Clocks, Incarnation: u.Incarnation, Of: u.of, Tick: u.tick, Ticked: u.ticked,
				Lost: u.Lost, Repeats: u.Repeats,
			}
			if us.Clocks == 1 {
				us.Clocks = 0
			}
			for _, p := range u.Parts {
				us.Parts = append(us.Parts, bytes.Clone(p))
				us.Sizes = append(us.Sizes, len(p))
				if p == nil {
					us.Sizes[len(us.Sizes)-1] = -1
				}
			}
			out.Pending = append(out.Pending, us)
		}
		st.Slots = append(st.Slots, out)
	}
	return st
}

// Restore returns an intake with the given state. It keeps the state's payloads.
func Restore(st *State, mutations mutation.Set) *Sequencer {
	mode := perdure.ClockOneStep
	switch {
	case st.TwoStep:
		mode = perdure.ClockTwoStep
	case st.Atomic:
		mode = perdure.ClockAtomic
	}
	in := NewSequencer(mode, st.Applied, mutations)
	in.cut, in.hold.number, in.end = st.Cut, st.Hold, st.End
	in.membershipVersion, in.intervals = st.MembershipVersion, slices.Clone(st.Intervals)
	for i := range st.Slots {
		from, s := &st.Slots[i], &in.slots[i]
		s.incarnation, s.decided = from.Incarnation, from.Decided
		for j := range from.Pending {
			us := &from.Pending[j]
			u := &Update{
				Slot: perdure.Slot(i), Clock: us.Clock, Clocks: max(1, us.Clocks), Incarnation: us.Incarnation,
				Parts: us.Parts,
				Lost:  us.Lost, Repeats: us.Repeats, of: us.Of, tick: us.Tick, ticked: us.Ticked,
			}
			for _, p := range u.Parts {
				if p != nil {
					u.received++
					u.bytes += PartCost + int64(len(p))
				}
			}
			s.pending = append(s.pending, u)
		}
		s.count()
	}
	return in
}
