package api

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// shared returns an order that has slots.
func shared(t interface{ Fatal(...any) }, seed uint64, examples, slots, size int) *Order {
	o := NewOrder(seed, examples, size)
	if err := o.SetSlots(slots); err != nil {
		t.Fatal(err)
	}
	return o
}

// TestEpochs checks that a slot uses each example of its range once per epoch, in a different order each time, and that
// the ranges partition all examples.
func TestEpochs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		examples := rapid.IntRange(1, 100).Draw(t, "examples")
		slots := rapid.IntRange(1, examples).Draw(t, "slots")
		batch := rapid.IntRange(1, 130).Draw(t, "batch")
		o := shared(t, rapid.Uint64().Draw(t, "seed"), examples, slots, batch)
		var all []int32
		for slot := range perdure.Slot(slots) {
			own := slices.Sorted(slices.Values(o.Range(slot)))
			all = append(all, own...)
			var seen []int32
			for clock := perdure.Clock(0); len(seen) < 3*len(own); clock++ {
				seen = append(seen, o.Batch(slot, clock)...)
			}
			for epoch := range 3 {
				got := slices.Sorted(slices.Values(seen[epoch*len(own) : (epoch+1)*len(own)]))
				if !slices.Equal(got, own) {
					t.Fatalf("slot %d, epoch %d: examples %v, want %v", slot, epoch, got, own)
				}
			}
			if n := len(own); n >= 20 && slices.Equal(seen[:n], seen[n:2*n]) {
				t.Fatalf("slot %d: two epochs in the same order", slot)
			}
		}
		slices.Sort(all)
		for i, example := range all {
			if int(example) != i || len(all) != examples {
				t.Fatalf("the slots share out %v", all)
			}
		}
	})
}

// TestBatchIsPure checks that a batch does not depend on earlier calls.
func TestBatchIsPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		examples := rapid.IntRange(1, 60).Draw(t, "examples")
		slots := rapid.IntRange(1, min(examples, 4)).Draw(t, "slots")
		batch := rapid.IntRange(1, 40).Draw(t, "batch")
		seed := rapid.Uint64().Draw(t, "seed")
		used := shared(t, seed, examples, slots, batch)
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			slot := perdure.Slot(rapid.IntRange(0, slots-1).Draw(t, "slot"))
			clock := perdure.Clock(rapid.Int64Range(0, 1<<40).Draw(t, "clock"))
			got, want := used.Batch(slot, clock), shared(t, seed, examples, slots, batch).Batch(slot, clock)
			if !slices.Equal(got, want) {
				t.Fatalf("slot %d, clock %d: %v, of a new order %v", slot, clock, got, want)
			}
		}
	})
}

// TestBatchGolden fixes the order that a seed determines. If it changed, old runs could not be replayed.
func TestBatchGolden(t *testing.T) {
	for _, c := range []struct {
		seed  uint64
		slot  perdure.Slot
		clock perdure.Clock
		want  []int32
	}{
		{0, 0, 0, []int32{55168, 16604, 17669, 14286, 40806, 34607}},
		{42, 0, 0, []int32{3947, 14852, 20211, 53124, 36631, 19191}},
		{42, 3, 0, []int32{9533, 2597, 27947, 7111, 59433, 26837}},
		{42, 3, 100000, []int32{28083, 55367, 52702, 36115, 18730, 39035}},
	} {
		if got := shared(t, c.seed, 60000, 4, 6).Batch(c.slot, c.clock); !slices.Equal(got, c.want) {
			t.Errorf("seed %d, slot %d, clock %d: %v, want %v", c.seed, c.slot, c.clock, got, c.want)
		}
	}
}
