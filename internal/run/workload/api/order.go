package api

import (
	"github.com/perdure/perdure"
)

// Order determines the examples that a slot uses in a clock, as a pure function of (seed, slot, clock).
//
// A permutation, determined by the seed, is split into one contiguous range per slot. A slot processes its range epoch
// by epoch and uses every example once per epoch. (seed, slot, epoch) determines the order within the epoch. Batches
// follow each other without gaps, even across the end of an epoch.
//
// An Order stores only what it can recompute: each slot's order for its current epoch. It is not safe for concurrent
// use.
type Order struct {
	seed   uint64
	ranges []int32 // the permutation of all examples
	slots  []slotOrder
	next   []int32 // the last batch returned
}

type slotOrder struct {
	epoch    int64
	examples []int32 // nil until the slot's first batch
}

// NewOrder returns an order for the given number of examples, in batches of size. It has no slots until SetSlots.
func NewOrder(seed uint64, examples, size int) *Order {
	o := &Order{seed: seed, ranges: make([]int32, examples), next: make([]int32, size)}
	for i := range o.ranges {
		o.ranges[i] = int32(i)
	}
	Shuffle(o.ranges, Mix(seed))
	return o
}

// SetSlots distributes the examples among the given number of slots. It does nothing if the number is unchanged. Fewer
// than one slot, or more slots than examples, return perdure.ErrUsage.
func (o *Order) SetSlots(slots int) error {
	switch {
	case slots < 1:
		return perdure.Usagef("invalid number of workers %d; choose at least 1", slots)
	case slots > len(o.ranges):
		return perdure.Usagef("%d workers are too many for %d training examples; each needs at least one", slots,
			len(o.ranges))
	case slots != len(o.slots):
		o.slots = make([]slotOrder, slots)
	}
	return nil
}

// Range returns a slot's examples, in the order of the seed's permutation. The caller must not modify the slice.
func (o *Order) Range(slot perdure.Slot) []int32 {
	n, slots := len(o.ranges), len(o.slots)
	return o.ranges[int(slot)*n/slots : (int(slot)+1)*n/slots]
}

// Batch returns the examples of a slot's clock. The slice is valid until the next call. slot must be below the number
// of slots, and clock must not be negative.
func (o *Order) Batch(slot perdure.Slot, clock perdure.Clock) []int32 {
	own := o.Range(slot)
	s := &o.slots[slot]
	if s.examples == nil {
		s.examples = make([]int32, len(own))
		s.epoch = -1
	}
	for i := range o.next {
		at := int64(clock)*int64(len(o.next)) + int64(i)
		epoch := at / int64(len(own))
		if epoch != s.epoch {
			copy(s.examples, own)
			Shuffle(s.examples, PassState(o.seed, slot, epoch))
			s.epoch = epoch
		}
		o.next[i] = s.examples[at%int64(len(own))]
	}
	return o.next
}
