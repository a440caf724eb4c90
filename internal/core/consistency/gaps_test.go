package consistency

import (
	"fmt"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
	"github.com/perdure/perdure/internal/core/protocol"
)

// applies returns what an intake applies now: slot:clock, with a minus for clocks that only count.
func applies(in *Sequencer) (list []string) {
	for u := in.Next(); u != nil; u = in.Next() {
		sign := ""
		if u.Lost {
			sign = "-"
		}
		list = append(list, fmt.Sprintf("%s%d:%d", sign, u.Slot, u.Clock))
	}
	return list
}

// With CountMissingAsLost, clocks missing below a decision's start become lost updates, in their slot's turn and held
// back by cuts like all others. Lost updates remain lost when the slot dies again.
func TestGaps(t *testing.T) {
	in := NewSequencer(perdure.ClockOneStep, []perdure.Clock{4, 4}, mutation.Set{})
	in.CountMissingAsLost()
	part := func(slot perdure.Slot, clock perdure.Clock, incarnation perdure.Incarnation) Outcome {
		return in.Offer(UpdatePart{Slot: slot, Clock: clock, Incarnation: incarnation, Of: 1})
	}
	check := func(what, want string) {
		t.Helper()
		if got := fmt.Sprint(applies(in)); got != want {
			t.Errorf("%s: applied %s, want %s", what, got, want)
		}
	}
	in.SetCut(6)
	in.Fence(1, 2)
	in.Decide(1, 2, 7)
	check("slot 1 continues at clock 7, the cut is 6", "[-1:4 -1:5]")
	if got, want := in.Counts(1), (protocol.Counts{Staged: 7, Ticked: 7, Applied: 6}); got != want {
		t.Errorf("slot 1 has counts %+v, want %+v", got, want)
	}
	if v := part(1, 7, 2); v != Kept {
		t.Errorf("clock 7 of the next process: %v", v)
	}
	in.Fence(1, 3) // the process dies
	if got := in.Counts(1); got.Staged != 7 {
		t.Errorf("lost updates are gone: %+v", got)
	}
	in.Decide(1, 3, 9)
	in.Decide(1, 3, 9)
	if v := part(1, 9, 3); v != Kept {
		t.Errorf("clock 9 of the process after that: %v", v)
	}
	check("slot 0 is not at the cut", "[]")
	part(0, 4, 1)
	part(0, 5, 1)
	check("slot 0 reaches the cut", "[0:4 0:5]")
	if !in.AtCut() {
		t.Error("the intake is not at the cut")
	}
	st := in.State()
	in = Restore(&st, mutation.Set{}) // a copy continues in the same way
	in.CountMissingAsLost()
	in.SetCut(0)
	check("after the cut", "[-1:6 -1:7 -1:8 1:9]")
}

// Without CountMissingAsLost nothing is filled under one-step clocks. With ticks gaps are always filled.
func TestGapsOfOthers(t *testing.T) {
	for mode, want := range map[perdure.ClockMode]string{
		perdure.ClockOneStep: "[]", perdure.ClockAtomic: "[-1:0 -1:1]", perdure.ClockTwoStep: "[0:0 -1:0 0:1 -1:1]",
	} {
		in := NewSequencer(mode, []perdure.Clock{0, 0}, mutation.Set{})
		if mode != perdure.ClockTwoStep {
			in.SetCut(0)
		} else {
			for c := range perdure.Clock(2) {
				in.Offer(UpdatePart{Slot: 0, Clock: c, Of: 1, Ticked: true})
			}
		}
		in.Fence(1, 1)
		in.Decide(1, 1, 2)
		if got := fmt.Sprint(applies(in)); got != want {
			t.Errorf("mode %v: applied %s, want %s", mode, got, want)
		}
	}
}
