package api

import (
	"fmt"

	"github.com/perdure/perdure"
)

// Order decides which examples a slot sees in a clock, as a pure function of
// (seed, slot, clock). One permutation by the seed shares the examples out: each
// slot has a contiguous part of it, its data range. A slot goes through its range
// epoch by epoch, every example once in each, in an order shuffled anew by (seed,
// slot, epoch); batches follow each other without gaps, also across the end of an
// epoch. What is kept here is only what can be computed again: each slot's order
// of its present epoch. It is not for concurrent use.
type Order struct {
	seed   uint64
	ranges []int32 // the permutation of all examples
	slots  []slotOrder
	next   []int32 // the batch that was asked for last
}

type slotOrder struct {
	epoch    int64
	examples []int32 // nil until the slot is first asked for
}

// NewOrder returns an order of that many examples, in batches of size each. It has
// no slots until SetSlots.
func NewOrder(seed uint64, examples, size int) *Order {
	o := &Order{seed: seed, ranges: make([]int32, examples), next: make([]int32, size)}
	for i := range o.ranges {
		o.ranges[i] = int32(i)
	}
	Shuffle(o.ranges, Mix(seed))
	return o
}

// SetSlots shares the examples out among the slots that there are from now on. It does
// nothing if they are already. Fewer slots than one, or more than examples, are a
// perdure.ErrUsage.
func (o *Order) SetSlots(slots int) error {
	switch {
	case slots < 1:
		return fmt.Errorf("%w: %d workers; choose at least 1", perdure.ErrUsage, slots)
	case slots > len(o.ranges):
		return fmt.Errorf("%w: %d workers for %d training examples; each needs at least one", perdure.ErrUsage, slots,
			len(o.ranges))
	case slots != len(o.slots):
		o.slots = make([]slotOrder, slots)
	}
	return nil
}

// Range returns the examples of a slot: its part of all, in an order that the seed says. The slice is not to be
// changed.
func (o *Order) Range(slot perdure.Slot) []int32 {
	n, slots := len(o.ranges), len(o.slots)
	return o.ranges[int(slot)*n/slots : (int(slot)+1)*n/slots]
}

// Batch returns the examples of a slot's clock. The slice is valid until the next
// call. The slot must be one of those shared out to, and the clock not below 0.
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
