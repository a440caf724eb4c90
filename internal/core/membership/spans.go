package membership

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// A slot takes part in the job for a span of clocks. These functions compute the spans that a change leaves, and check
// that some slot still works at every clock. All of them are pure, and may be called by any number of goroutines.

// Change is a change of who takes part in the job, from a clock on that no slot has
// begun yet.
type Change struct {
	Add   int            `json:"add,omitempty"`   // how many slots more
	Leave []perdure.Slot `json:"leave,omitempty"` // these leave
	Again []perdure.Slot `json:"again,omitempty"` // these, which were suspended, take part again
	At    perdure.Clock  `json:"at,omitempty"`    // the clock, or nothing changes; 0: the next there is
	// Guest says that processes wait for the new slots: nobody else need start one.
	Guest bool `json:"guest,omitempty"`
}

// scaledTo returns what has to change for a number of slots to take part: who joins last
// leaves first.
func scaledTo(slots []words.SlotView, workers int, at perdure.Clock) (Change, error) {
	if workers < 1 {
		return Change{}, fmt.Errorf("%w: %d workers; at least one must be left", perdure.ErrUsage, workers)
	}
	if workers > perdure.MaxSlots {
		return Change{}, fmt.Errorf("%w: %d workers; a job has at most %d", perdure.ErrUsage, workers, perdure.MaxSlots)
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

// Apply makes a change at a clock, in place where there is room. It returns the slots then, those
// that take part from the clock on, and how many clocks were in the spans that these had before.
func (ch *Change) Apply(slots []words.SlotView, at perdure.Clock) (
	next []words.SlotView, joined []int, past int64, err error,
) {
	for _, slot := range ch.Leave {
		if err := leave(slots, slot, at); err != nil {
			return nil, nil, 0, err
		}
	}
	vacant := 0 // those below it are not
	for n := range len(ch.Again) + ch.Add {
		i := vacant
		if n < len(ch.Again) {
			if i = int(ch.Again[n]); i < 0 || i >= len(slots) || !slots[i].Left {
				continue // somebody else has it already
			}
		} else {
			for i < len(slots) && !(slots[i].Left && slots[i].Until <= at) {
				i++
			}
			vacant = i
		}
		if i >= perdure.MaxSlots {
			return nil, nil, 0, fmt.Errorf("%w: more slots than %d, which is the most that a job has, those that "+
				"have left and were not replaced included", perdure.ErrUsage, perdure.MaxSlots)
		}
		if i == len(slots) {
			slots = append(slots, words.SlotView{})
		}
		sl := &slots[i]
		if sl.Left {
			past += int64(sl.Clocks(at))
		}
		incarnation := sl.Incarnation
		if incarnation > 0 {
			incarnation++ // whoever had it before is fenced
		}
		*sl = words.SlotView{Incarnation: incarnation, Span: words.Span{From: at}}
		joined = append(joined, i)
	}
	all := make([]words.Span, len(slots))
	for i := range slots {
		all[i] = slots[i].Span
	}
	return slots, joined, past, someoneWorks(all, at)
}

// leave ends a slot's span at a clock.
func leave(slots []words.SlotView, slot perdure.Slot, at perdure.Clock) error {
	if slot < 0 || int(slot) >= len(slots) {
		return fmt.Errorf("%w: there is no slot %d in a job of %d", perdure.ErrUsage, slot, len(slots))
	}
	sl := &slots[slot]
	switch {
	case sl.Left:
		return fmt.Errorf("%w: slot %d has left at clock %d", perdure.ErrUsage, slot, sl.Until)
	case sl.Until > 0:
		return fmt.Errorf("%w: slot %d leaves at clock %d already", perdure.ErrUsage, slot, sl.Until)
	case sl.From >= at:
		return fmt.Errorf("%w: slot %d begins at clock %d; it cannot leave at clock %d", perdure.ErrUsage,
			slot, sl.From, at)
	}
	sl.Until = at
	return nil
}

// spanUpTo is the span of a slot that has done its clocks up to the given one; one without any
// clock if these are none.
func spanUpTo(from, until perdure.Clock) words.Span {
	if until <= from {
		return words.Span{From: from + 1, Until: from + 1}
	}
	return words.Span{From: from, Until: until}
}

// someoneWorks reports from when on no slot would take part, if there is such a clock from
// the given one on.
func someoneWorks(spans []words.Span, at perdure.Clock) error {
	sorted := slices.SortedFunc(slices.Values(spans),
		func(a, b words.Span) int { return cmp.Compare(a.From, b.From) })
	until := at // all clocks below it have somebody
	for _, s := range sorted {
		if s.From > until {
			break
		}
		if s.Until == 0 {
			return nil
		}
		until = max(until, s.Until)
	}
	return fmt.Errorf("%w: nobody would be left to work on clock %d; at least one worker must be", perdure.ErrUsage,
		until)
}

// Clock returns from which clock on a change is to be, in a job whose slots work at a clock and
// that ends at another (0: that is not known); 0: it changes nothing.
func (ch *Change) Clock(working, end perdure.Clock) (at perdure.Clock, err error) {
	switch {
	case ch.Add < 0 || ch.Add > perdure.MaxSlots || len(ch.Leave) > perdure.MaxSlots ||
		len(ch.Again) > perdure.MaxSlots:
		return 0, fmt.Errorf("%w: %d slots more, and %d that leave; a job has at most %d", perdure.ErrUsage, ch.Add,
			len(ch.Leave), perdure.MaxSlots)
	case ch.At < 0 || ch.At > perdure.MaxClock:
		return 0, fmt.Errorf("%w: clock %d; choose 1 to %d", perdure.ErrUsage, ch.At, perdure.MaxClock)
	case ch.Add+len(ch.Leave)+len(ch.Again) == 0:
		return 0, nil
	case end > 0 && ch.At >= end:
		return 0, fmt.Errorf("%w: clock %d; the job ends at clock %d", perdure.ErrUsage, ch.At, end)
	case ch.At == 0:
		return working + 1, nil
	case ch.At <= working:
		return 0, fmt.Errorf("%w: clock %d; the workers are at clock %d already", perdure.ErrUsage, ch.At, working)
	}
	return ch.At, nil
}

// plannedChange returns what has to change for a number of slots to take part from a clock on, in a job
// that has not begun. What is planned is planned in the order of the clocks.
func plannedChange(v *words.View, workers int, at perdure.Clock) (Change, error) {
	if at <= v.Cut || v.End > 0 && at >= v.End {
		return Change{}, fmt.Errorf("%w: %d workers from clock %d on, in a job of the clocks %d to %d; choose one "+
			"between", perdure.ErrUsage, workers, at, v.Cut, v.End)
	}
	for _, s := range v.Slots {
		if s.From >= at || s.Until >= at {
			return Change{}, fmt.Errorf("%w: %d workers from clock %d on, after those of clock %d; name them in the "+
				"order of their clocks", perdure.ErrUsage, workers, at, max(s.From, s.Until))
		}
	}
	return scaledTo(v.Slots, workers, at)
}

// resumedSlots returns the slots that a checkpoint of a cut was saved with.
func resumedSlots(saved []words.Span, cut perdure.Clock) []words.SlotView {
	slots := make([]words.SlotView, len(saved))
	for i, s := range saved {
		slots[i].Span, slots[i].Left = s, s.Until > 0 && s.Until <= max(cut, s.From)
	}
	return slots
}

// Changed returns the spans of a job that goes on with another number of workers: at is the first clock that nobody
// has begun. What was planned for later is dropped. Nobody gets the slot of one that has left, whose clocks count on.
func Changed(saved []words.Span, workers int, at perdure.Clock) ([]words.Span, error) {
	if workers < 1 || workers > perdure.MaxSlots {
		return nil, fmt.Errorf("%w: --workers %d; choose 1 to %d", perdure.ErrUsage, workers, perdure.MaxSlots)
	}
	next := slices.Clone(saved)
	left := workers
	for i := range next {
		switch s := &next[i]; {
		case s.From > at:
			s.Until = s.From // it never comes
		case s.Until > 0 && s.Until <= at: // it is gone
		case left > 0:
			s.Until, left = 0, left-1
		default:
			s.Until = at
		}
	}
	if len(next)+left > perdure.MaxSlots {
		return nil, fmt.Errorf("%w: --workers %d: the job has had %d slots, and gets %d more, but %d is the most that "+
			"it has; choose fewer", perdure.ErrUsage, workers, len(next), left, perdure.MaxSlots)
	}
	for range left {
		next = append(next, words.Span{From: at})
	}
	return next, nil
}

// slotClocks returns how many clocks all slots together take part in until clock end.
func slotClocks(slots []words.SlotView, end perdure.Clock) (n int64) {
	for i := range slots {
		n += int64(slots[i].Clocks(end))
	}
	return n
}

// comesEarly reports whether a job has not come to the clock from which a slot takes part. It begins
// at a clock; done is how many clocks each slot is known to have done.
func comesEarly(slots []words.SlotView, slot int, begins perdure.Clock, done func(slot int) perdure.Clock) bool {
	sl, reached := &slots[slot], begins
	if sl.From == 0 {
		return false
	}
	for i := 0; i < len(slots) && reached+1 < sl.From; i++ {
		other := &slots[i]
		switch done := max(done(i), other.Start); {
		case other.Left:
			reached = max(reached, other.Until) // the only one that had come so far may have gone since
		case i != slot && other.From < sl.From || done > other.From: // else it may be early itself
			reached = max(reached, done)
		}
	}
	return reached+1 < sl.From
}

// leastCount returns the least of slots' counts, but for those that have done all their clocks; of all,
// if these have.
func leastCount(slots []words.SlotView, counts []perdure.Clock) perdure.Clock {
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
