package consistency

import (
	"fmt"
	"math"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/mutation"
)

func model(t *testing.T, s string) perdure.Consistency {
	t.Helper()
	m, err := perdure.ParseConsistency(s)
	if err != nil {
		t.Fatal(err)
	}
	return m
}

// A read at clock c needs MinClock ≥ c - s.
func TestMayRead(t *testing.T) {
	for _, tc := range []struct {
		model  string
		clock  perdure.Clock
		needed perdure.Clock
	}{
		{"bsp", 0, 0}, // the first read never waits
		{"bsp", 1, 1},
		{"bsp", 7, 7},
		{"ssp:0", 7, 7}, // like bsp
		{"ssp:1", 0, -1},
		{"ssp:1", 1, 0},
		{"ssp:2", 7, 5},
		{"ssp:2147483647", 7, 7 - math.MaxInt32},
		{"essp:2", 7, 5},
		{"vap:1", 7, AnyClock},
		{"asp", 0, AnyClock},
		{"asp", 1 << 40, AnyClock},
	} {
		m := model(t, tc.model)
		if got := RequiredMinClock(m, tc.clock); got != tc.needed {
			t.Errorf("%s: a read at clock %d needs MinClock %d, want %d", tc.model, tc.clock, got, tc.needed)
		}
		if !MayRead(m, tc.needed, tc.clock) {
			t.Errorf("%s: a read at clock %d may not use MinClock %d", tc.model, tc.clock, tc.needed)
		}
		if tc.needed != AnyClock && MayRead(m, tc.needed-1, tc.clock) {
			t.Errorf("%s: a read at clock %d may use MinClock %d", tc.model, tc.clock, tc.needed-1)
		}
	}
}

// A cached row is valid as long as a fresh answer with its MinClock would be; under asp for the clock at which it was
// fetched; under vap as long as it is pushed.
func TestMayReuse(t *testing.T) {
	for _, tc := range []struct {
		model string
		row   CachedRow
		clock perdure.Clock
		want  bool
	}{
		{"bsp", CachedRow{3, 3, false}, 3, true},
		{"bsp", CachedRow{3, 3, false}, 4, false},
		{"bsp", CachedRow{4, 3, false}, 4, true}, // fetched late, from a faster shard
		{"ssp:2", CachedRow{3, 3, false}, 5, true},
		{"ssp:2", CachedRow{3, 3, false}, 6, false},
		{"ssp:2", CachedRow{1, 3, false}, 3, true}, // the fetch clock does not matter
		{"ssp:2", CachedRow{0, 3, false}, 3, false},
		{"essp:2", CachedRow{3, 0, true}, 5, true},
		{"essp:2", CachedRow{3, 0, true}, 6, false}, // the subscription does not help if the push has not arrived
		{"asp", CachedRow{0, 3, false}, 3, true},
		{"asp", CachedRow{3, 3, false}, 4, false},  // otherwise others' updates would never be seen
		{"asp", CachedRow{99, 5, false}, 4, false}, // rolled back since
		{"vap:1", CachedRow{0, 0, true}, 9, true},
		{"vap:1", CachedRow{9, 9, false}, 9, false},
	} {
		if got := MayReuse(model(t, tc.model), tc.row, tc.clock); got != tc.want {
			t.Errorf("%s: row %+v at clock %d: %v, want %v", tc.model, tc.row, tc.clock, got, tc.want)
		}
	}
}

// A subscription to a row that only its reader changes is kept, and one whose pushes are in vain is given up.
func TestGiveUp(t *testing.T) {
	for _, tc := range []struct {
		unread perdure.Clock
		pushes int
		want   bool
	}{
		{0, 255, false},
		{8, 255, false},
		{9, 3, false},
		{9, 4, true},
		{128, 0, false},
		{128, 3, false},
		{129, 0, true},
	} {
		if got := ShouldUnsubscribe(tc.unread, tc.pushes); got != tc.want {
			t.Errorf("unread for %d clocks, pushed %d times: %v", tc.unread, tc.pushes, got)
		}
	}
}

// The intake copies its initial vector, and a part without content is a part.
func TestIntakeOwnsItsVector(t *testing.T) {
	applied := []perdure.Clock{1, 1}
	in := NewSequencer(perdure.ClockOneStep, applied, mutation.Set{})
	applied[0] = 7
	if v := in.Offer(UpdatePart{Slot: 0, Clock: 1, Of: 1}); v != Kept {
		t.Fatalf("offer: %v", v)
	}
	if u := in.Next(); u == nil || u.Clock != 1 || len(u.Parts) != 1 {
		t.Fatalf("applied %+v", u)
	}
	if got := in.Applied(); got[0] != 2 || got[1] != 1 || applied[0] != 7 {
		t.Fatalf("applied vector %v, the caller has %v", got, applied)
	}
}

func ExampleSequencer() {
	in := NewSequencer(perdure.ClockOneStep, make([]perdure.Clock, 2), mutation.Set{})
	in.Offer(UpdatePart{Slot: 1, Clock: 0, Incarnation: 1, Of: 1, Payload: []byte("deltas")})
	again := in.Offer(UpdatePart{Slot: 1, Clock: 0, Incarnation: 1, Of: 1, Payload: []byte("deltas")})
	for u := in.Next(); u != nil; u = in.Next() {
		fmt.Printf("apply slot %d clock %d: %s\n", u.Slot, u.Clock, u.Parts[0])
	}
	fmt.Println("the second is a duplicate:", again == Duplicate)
	fmt.Println("applied", in.Applied(), "MinClock", in.MinClock())
	// Output:
	// apply slot 1 clock 0: deltas
	// the second is a duplicate: true
	// applied [0 1] MinClock 0
}

// PendingBytes counts the parts of unapplied updates, and nothing else, however an update leaves the intake.
func TestPendingBytes(t *testing.T) {
	for _, mode := range []perdure.ClockMode{perdure.ClockOneStep, perdure.ClockTwoStep} {
		twoStep := mode == perdure.ClockTwoStep
		in := NewSequencer(mode, []perdure.Clock{0, 0}, mutation.Set{})
		in.SetCut(2)
		offer := func(incarnation perdure.Incarnation, clock perdure.Clock, index, of, bytes int) {
			t.Helper()
			in.Offer(UpdatePart{
				Clock: clock, Incarnation: incarnation, Index: index, Of: of, Payload: make([]byte, bytes),
				Ticked: true,
			})
		}
		expect := func(what string, parts, bytes int) {
			t.Helper()
			if got := in.PendingBytes(0); got != int64(parts*PartCost+bytes) {
				t.Errorf("two steps %v, %s: %d bytes pending, want %d in %d parts", twoStep, what, got, bytes,
					parts)
			}
		}
		offer(1, 0, 0, 0, 1000)
		offer(1, 0, 0, 0, 1000)
		expect("a part received twice", 1, 1000)
		offer(1, 0, 3, 0, 10)
		expect("parts of an unknown number", 2, 1010)
		offer(1, 0, 0, 2, 500)
		expect("another version of the update", 1, 500)
		offer(2, 0, 0, 1, 70)
		expect("the next incarnation's", 1, 70)
		if !twoStep {
			in.Free(in.Next())
			expect("an update that is applied", 0, 0)
		}
		offer(2, 1, 0, 0, 5)
		in.Fence(0, 3)
		if twoStep {
			expect("a fence", 1, 70) // complete updates stay until the decision
			in.Decide(0, 3, 0)
		}
		expect("a fence and its decision", 0, 0)
		for clock := in.Applied()[0]; clock < 4; clock++ {
			offer(3, clock, 0, 1, 100)
		}
		waiting := 4 - int(in.Applied()[0])
		expect("updates before and after a cut", waiting, 100*waiting)
		for u := in.Next(); u != nil; u = in.Next() {
			in.Free(u)
			waiting--
		}
		expect("updates after a cut", waiting, 100*waiting)
		offer(3, in.Applied()[0]+perdure.Clock(waiting), 0, 1, 9) // in reused memory
		expect("one more", waiting+1, 100*waiting+9)
	}
}
