package softmax

import (
	"github.com/perdure/perdure"
	"github.com/perdure/perdure/workload/contract"
)

// order decides which pictures a slot sees in a clock, as a pure function of
// (seed, slot, clock). One permutation by the seed shares the pictures out:
// each slot has a contiguous part of it, its data range. A slot goes through
// its range epoch by epoch, every picture once in each, in an order shuffled
// anew by (seed, slot, epoch); batches follow each other without gaps, also
// across the end of an epoch. What is kept here is only what can be computed
// again: each slot's order of its present epoch.
type order struct {
	seed   uint64
	ranges []int32 // the permutation of all pictures
	slots  []slotOrder
	next   []int32 // the batch that was asked for last
}

type slotOrder struct {
	epoch    int64
	pictures []int32 // nil until the slot is first asked for
}

func newOrder(seed uint64, pictures, slots, batch int) *order {
	o := &order{
		seed:   seed,
		ranges: make([]int32, pictures),
		slots:  make([]slotOrder, slots),
		next:   make([]int32, batch),
	}
	for i := range o.ranges {
		o.ranges[i] = int32(i)
	}
	contract.Shuffle(o.ranges, contract.Mix(seed))
	return o
}

// dataRange returns the pictures of a slot.
func (o *order) dataRange(slot perdure.Slot) []int32 {
	n, slots := len(o.ranges), len(o.slots)
	return o.ranges[int(slot)*n/slots : (int(slot)+1)*n/slots]
}

func (o *order) batch(slot perdure.Slot, clock perdure.Clock) []int32 {
	own := o.dataRange(slot)
	s := &o.slots[slot]
	if s.pictures == nil {
		s.pictures = make([]int32, len(own))
		s.epoch = -1
	}
	for i := range o.next {
		at := int64(clock)*int64(len(o.next)) + int64(i)
		epoch := at / int64(len(own))
		if epoch != s.epoch {
			copy(s.pictures, own)
			contract.Shuffle(s.pictures, contract.PassState(o.seed, slot, epoch))
			s.epoch = epoch
		}
		o.next[i] = s.pictures[at%int64(len(own))]
	}
	return o.next
}
