package membership

import (
	"cmp"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// A slot participates in the job during a membership interval of clocks. These functions compute the intervals after a
// change, and check that some slot still works at every clock. All of them are pure and safe for concurrent use.

// Change is a change of the participating slots, from a clock on that no slot has started yet.
type Change struct {
	Add    int            `json:"add,omitempty"`   // number of new slots
	Leave  []perdure.Slot `json:"leave,omitempty"` // slots that leave
	Rejoin []perdure.Slot `json:"again,omitempty"` // suspended slots that participate again
	At     perdure.Clock  `json:"at,omitempty"`    // the clock at which it takes effect, or never; 0: the next one
	// Unmanaged is set if processes already wait for the new slots, so that no supervisor has to start them.
	Unmanaged bool `json:"guest,omitempty"`
}

// scaledTo returns the change after which the given number of slots participate: the last to join leave first.
func scaledTo(slots []protocol.SlotView, workers int, at perdure.Clock) (Change, error) {
	if workers < 1 {
		return Change{}, perdure.Usagef("too few workers (%d); at least one must remain", workers)
	}
	if workers > perdure.MaxSlots {
		return Change{}, perdure.Usagef("%d workers; a job has at most %d", workers, perdure.MaxSlots)
	}
	var stay []perdure.Slot
	for i := range slots {
		if slots[i].Until == 0 {
			stay = append(stay, perdure.Slot(i))
		}
	}
	ch := Change{Add: max(0, workers-len(stay)), At: at}
	if len(stay) > workers {
		ch.Leave = stay[workers:]
	}
	return ch, nil
}

// Apply applies a change at a clock, in place if possible. Slots that left after clock reusable are not reused. It
// returns the new slots, the indices of those that participate from the clock on, and the number of clocks in the
// former membership intervals of reused slots.
func (ch *Change) Apply(slots []protocol.SlotView, at, reusable perdure.Clock) (
	next []protocol.SlotView, joined []int, past int64, err error,
) {
	for _, slot := range ch.Leave {
		if err := endInterval(slots, slot, at); err != nil {
			return nil, nil, 0, err
		}
	}
	vacant := 0 // all slots below it are taken
	for n := range len(ch.Rejoin) + ch.Add {
		i := vacant
		if n < len(ch.Rejoin) {
			if i = int(ch.Rejoin[n]); i < 0 || i >= len(slots) || !slots[i].Left {
				continue // another process already has it
			}
		} else {
			for i < len(slots) && !(slots[i].Left && slots[i].Until <= min(at, reusable)) {
				i++
			}
			vacant = i
		}
		if i >= perdure.MaxSlots {
			return nil, nil, 0, perdure.Usagef("too many slots; a job has at most %d, including those that left and "+
				"were not replaced", perdure.MaxSlots)
		}
		if i == len(slots) {
			slots = append(slots, protocol.SlotView{})
		}
		sl := &slots[i]
		if sl.Left {
			past += int64(sl.Clocks(at))
		}
		incarnation := sl.Incarnation
		if incarnation > 0 {
			incarnation++ // fences the former holder
		}
		*sl = protocol.SlotView{Incarnation: incarnation, Interval: protocol.Interval{From: at}}
		joined = append(joined, i)
	}
	all := make([]protocol.Interval, len(slots))
	for i := range slots {
		all[i] = slots[i].Interval
	}
	return slots, joined, past, checkCovered(all, at, false)
}

// endInterval ends a slot's membership interval at a clock.
func endInterval(slots []protocol.SlotView, slot perdure.Slot, at perdure.Clock) error {
	if slot < 0 || int(slot) >= len(slots) {
		return perdure.Usagef("there is no slot %d; the job has %d slots", slot, len(slots))
	}
	sl := &slots[slot]
	switch {
	case sl.Left:
		return perdure.Usagef("slot %d left the job at clock %d", slot, sl.Until)
	case sl.Until > 0:
		return perdure.Usagef("slot %d already leaves at clock %d", slot, sl.Until)
	case sl.From >= at:
		return perdure.Usagef("slot %d starts at clock %d and cannot leave at clock %d", slot, sl.From, at)
	}
	sl.Until = at
	return nil
}

// intervalUpTo returns the membership interval of a slot that has done its clocks up to the given one. It is empty if
// the slot has done none.
func intervalUpTo(from, until perdure.Clock) protocol.Interval {
	if until <= from {
		return protocol.Interval{From: from + 1, Until: from + 1}
	}
	return protocol.Interval{From: from, Until: until}
}

// checkCovered returns an error if there is a clock, from the given one on, in which no slot would participate. If
// shared is set, some slot must also have participated in the clock before: a slot that joins copies its state.
func checkCovered(intervals []protocol.Interval, at perdure.Clock, shared bool) error {
	sorted := slices.SortedFunc(slices.Values(intervals),
		func(a, b protocol.Interval) int { return cmp.Compare(a.From, b.From) })
	until := at // some slot works at each clock below it
	for _, s := range sorted {
		if s.From > until || shared && s.From == until && until > 0 {
			break
		}
		if s.Until == 0 {
			return nil
		}
		until = max(until, s.Until)
	}
	if shared {
		return perdure.Usagef("no worker that has the weights would be left at clock %d; one must remain until new "+
			"workers have copied them", until)
	}
	return perdure.Usagef("no worker would be left at clock %d; at least one must remain", until)
}

// Clock returns the clock at which a change takes effect, in a job whose slots work at one clock and that ends at
// another (0: unknown). It returns 0 if the change is empty.
func (ch *Change) Clock(working, end perdure.Clock) (at perdure.Clock, err error) {
	switch {
	case ch.Add < 0 || ch.Add > perdure.MaxSlots || len(ch.Leave) > perdure.MaxSlots ||
		len(ch.Rejoin) > perdure.MaxSlots:
		return 0, perdure.Usagef("cannot add %d slots and remove %d; a job can have at most %d slots", ch.Add,
			len(ch.Leave), perdure.MaxSlots)
	case ch.At < 0 || ch.At > perdure.MaxClock:
		return 0, perdure.Usagef("invalid clock %d; choose 1 to %d", ch.At, perdure.MaxClock)
	case ch.Add+len(ch.Leave)+len(ch.Rejoin) == 0:
		return 0, nil
	case end > 0 && ch.At >= end:
		return 0, perdure.Usagef("invalid clock %d; the job ends at clock %d", ch.At, end)
	case ch.At == 0:
		return working + 1, nil
	case ch.At <= working:
		return 0, perdure.Usagef("invalid clock %d; workers are already at clock %d", ch.At, working)
	}
	return ch.At, nil
}

// plannedChange returns the change after which the given number of slots participate from a clock on, in a job that has
// not started. Changes must be planned in the order of their clocks.
func plannedChange(v *protocol.View, workers int, at perdure.Clock) (Change, error) {
	if at <= v.Cut || v.End > 0 && at >= v.End {
		return Change{}, perdure.Usagef("%d workers from clock %d on, but the job has clocks %d to %d; choose a "+
			"clock in that range", workers, at, v.Cut, v.End)
	}
	for _, s := range v.Slots {
		if s.From >= at || s.Until >= at {
			return Change{}, perdure.Usagef("the change to %d workers at clock %d is listed after the one at clock "+
				"%d; list changes in clock order", workers, at, max(s.From, s.Until))
		}
	}
	return scaledTo(v.Slots, workers, at)
}

// resumedSlots returns the slots of a view that starts with a checkpoint. saved are their intervals at the checkpoint.
func resumedSlots(saved []protocol.Interval, v *protocol.View) []protocol.SlotView {
	slots := make([]protocol.SlotView, len(saved))
	for i, s := range saved {
		at := v.CutClocks.Of(perdure.Slot(i), v.Cut)
		slots[i].Interval, slots[i].Left = s, s.Until > 0 && s.Until <= max(at, s.From)
	}
	return slots
}

// RescaledIntervals returns the membership intervals of a job that continues with another number of workers. at is the
// first clock that no slot has started. Later planned changes are dropped. Slots that have left are not reused, because
// their clocks still count.
func RescaledIntervals(saved []protocol.Interval, workers int, at perdure.Clock) ([]protocol.Interval, error) {
	if workers < 1 || workers > perdure.MaxSlots {
		return nil, perdure.Usagef("invalid --workers %d; choose 1 to %d", workers, perdure.MaxSlots)
	}
	next := slices.Clone(saved)
	left := workers
	for i := range next {
		switch s := &next[i]; {
		case s.From > at:
			s.Until = s.From // it never joins
		case s.Until > 0 && s.Until <= at: // it has left
		case left > 0:
			s.Until, left = 0, left-1
		default:
			s.Until = at
		}
	}
	if len(next)+left > perdure.MaxSlots {
		return nil, perdure.Usagef("invalid --workers %d: the job has had %d slots and would need %d more, but the "+
			"limit is %d; choose fewer workers", workers, len(next), left, perdure.MaxSlots)
	}
	for range left {
		next = append(next, protocol.Interval{From: at})
	}
	return next, nil
}

// slotClocks returns the total number of clocks, below end, in which slots participate.
func slotClocks(slots []protocol.SlotView, end perdure.Clock) (n int64) {
	for i := range slots {
		n += int64(slots[i].Clocks(end))
	}
	return n
}

// startsEarly reports whether a job has not reached the clock from which a slot participates. begins is the job's first
// clock; done returns how many clocks a slot is known to have done.
func startsEarly(slots []protocol.SlotView, slot int, begins perdure.Clock, done func(slot int) perdure.Clock) bool {
	sl, reached := &slots[slot], begins
	if sl.From == 0 {
		return false
	}
	for i := 0; i < len(slots) && reached+1 < sl.From; i++ {
		other := &slots[i]
		switch done := max(done(i), other.Start); {
		case other.Left:
			reached = max(reached, other.Until) // the only slot that had advanced so far may have left since
		case i != slot && other.From < sl.From || done > other.From: // otherwise it may be early itself
			reached = max(reached, done)
		}
	}
	return reached+1 < sl.From
}

// minCount returns the smallest count, ignoring slots that have done all their clocks. If all have, it returns the
// largest.
func minCount(slots []protocol.SlotView, counts []perdure.Clock) perdure.Clock {
	least := perdure.MaxClock
	for i, n := range counts {
		if until := slots[i].Until; until == 0 || n < until {
			least = min(least, n)
		}
	}
	if least == perdure.MaxClock {
		return slices.Max(counts)
	}
	return least
}
