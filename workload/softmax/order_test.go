package softmax

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/perdure/perdure"
)

// TestEpochs: in every epoch a slot sees each picture of its range once, in
// another order each time, and the ranges part all pictures.
func TestEpochs(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pictures := rapid.IntRange(1, 100).Draw(t, "pictures")
		slots := rapid.IntRange(1, pictures).Draw(t, "slots")
		batch := rapid.IntRange(1, 130).Draw(t, "batch")
		o := newOrder(rapid.Uint64().Draw(t, "seed"), pictures, slots, batch)
		var all []int32
		for slot := range perdure.Slot(slots) {
			own := slices.Sorted(slices.Values(o.dataRange(slot)))
			all = append(all, own...)
			var seen []int32
			for clock := perdure.Clock(0); len(seen) < 3*len(own); clock++ {
				seen = append(seen, o.batch(slot, clock)...)
			}
			for epoch := range 3 {
				got := slices.Sorted(slices.Values(seen[epoch*len(own) : (epoch+1)*len(own)]))
				if !slices.Equal(got, own) {
					t.Fatalf("slot %d, epoch %d: pictures %v, want %v", slot, epoch, got, own)
				}
			}
			if n := len(own); n >= 20 && slices.Equal(seen[:n], seen[n:2*n]) {
				t.Fatalf("slot %d: two epochs in the same order", slot)
			}
		}
		slices.Sort(all)
		for i, picture := range all {
			if int(picture) != i || len(all) != pictures {
				t.Fatalf("the slots share out %v", all)
			}
		}
	})
}

// TestBatchIsPure: a batch does not depend on what was asked for before.
func TestBatchIsPure(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pictures := rapid.IntRange(1, 60).Draw(t, "pictures")
		slots := rapid.IntRange(1, min(pictures, 4)).Draw(t, "slots")
		batch := rapid.IntRange(1, 40).Draw(t, "batch")
		seed := rapid.Uint64().Draw(t, "seed")
		used := newOrder(seed, pictures, slots, batch)
		for range rapid.IntRange(1, 20).Draw(t, "calls") {
			slot := perdure.Slot(rapid.IntRange(0, slots-1).Draw(t, "slot"))
			clock := perdure.Clock(rapid.Int64Range(0, 1<<40).Draw(t, "clock"))
			got, want := used.batch(slot, clock), newOrder(seed, pictures, slots, batch).batch(slot, clock)
			if !slices.Equal(got, want) {
				t.Fatalf("slot %d, clock %d: %v, of a new model %v", slot, clock, got, want)
			}
		}
	})
}

// TestBatchGolden: a seed means the same order for good. Were it to change, old
// runs could not be replayed.
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
		if got := newOrder(c.seed, 60000, 4, 6).batch(c.slot, c.clock); !slices.Equal(got, c.want) {
			t.Errorf("seed %d, slot %d, clock %d: %v, want %v", c.seed, c.slot, c.clock, got, c.want)
		}
	}
}
