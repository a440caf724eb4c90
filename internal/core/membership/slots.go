package membership

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/perdure/perdure"
)

// Change is a change of who takes part in the job, from a clock on that no slot has
// begun yet.
type Change struct {
	Add   int            `json:"add,omitempty"`   // so many slots more
	Leave []perdure.Slot `json:"leave,omitempty"` // these leave
	Again []perdure.Slot `json:"again,omitempty"` // these, which were suspended, take part again
	At    perdure.Clock  `json:"at,omitempty"`    // the clock, or nothing changes; 0: the next there is
	// Guest says that processes wait for the new slots: nobody else need start one.
	Guest bool `json:"guest,omitempty"`
}

// Scaled returns what has to change for so many slots to take part: who joins last
// leaves first.
func (f *Facts) Scaled(workers int, at perdure.Clock) (Change, error) {
	if workers < 1 {
		return Change{}, fmt.Errorf("%w: %d workers; at least one must be left", perdure.ErrUsage, workers)
	}
	if workers > perdure.MaxSlots {
		return Change{}, fmt.Errorf("%w: %d workers; a job has at most %d", perdure.ErrUsage, workers, perdure.MaxSlots)
	}
	var stay []perdure.Slot
	for i := range f.View.Slots {
		if f.View.Slots[i].Until == 0 {
			stay = append(stay, perdure.Slot(i))
		}
	}
	ch := Change{Add: max(0, workers-len(stay)), At: at}
	if len(stay) > workers {
		ch.Leave = stay[workers:]
	}
	return ch, nil
}

// change names the clock of a change.
func (f *Facts) change(ch Change, at perdure.Clock) (joined []int, err error) {
	v := &f.View
	for _, slot := range ch.Leave {
		if slot < 0 || int(slot) >= len(v.Slots) {
			return nil, fmt.Errorf("%w: there is no slot %d in a job of %d", perdure.ErrUsage, slot, len(v.Slots))
		}
		sl := &v.Slots[slot]
		switch {
		case sl.Left:
			return nil, fmt.Errorf("%w: slot %d has left at clock %d", perdure.ErrUsage, slot, sl.Until)
		case sl.Until > 0:
			return nil, fmt.Errorf("%w: slot %d leaves at clock %d already", perdure.ErrUsage, slot, sl.Until)
		case sl.From >= at:
			return nil, fmt.Errorf("%w: slot %d begins at clock %d; it cannot leave at clock %d", perdure.ErrUsage, slot, sl.From, at)
		}
		sl.Until = at
	}
	vacant := 0 // those below it are not
	for n := range len(ch.Again) + ch.Add {
		i := vacant
		if n < len(ch.Again) {
			if i = int(ch.Again[n]); i < 0 || i >= len(v.Slots) || !v.Slots[i].Left {
				continue // somebody else has it already
			}
		} else {
			for i < len(v.Slots) && !(v.Slots[i].Left && v.Slots[i].Until <= at) {
				i++
			}
			vacant = i
		}
		if i >= perdure.MaxSlots {
			return nil, fmt.Errorf("%w: more slots than %d, which is the most that a job has, those that have left and were not replaced included", perdure.ErrUsage, perdure.MaxSlots)
		}
		if i == len(v.Slots) {
			v.Slots, f.Slots = append(v.Slots, perdure.SlotView{}), append(f.Slots, Place{})
		}
		sl := &v.Slots[i]
		if sl.Left {
			f.PastClocks += int64(sl.Clocks(at))
		}
		p := Place{Incarnation: sl.Incarnation, Guest: ch.Guest}
		if i < len(f.Slots) {
			p.Unkept = f.Slots[i].Unkept
		}
		if p.Incarnation > 0 {
			p.Incarnation++ // whoever had it before is fenced
		}
		*sl, f.Slots[i] = perdure.SlotView{Incarnation: p.Incarnation, Span: perdure.Span{From: at}}, p
		joined = append(joined, i)
	}
	v.Roster++
	return joined, someoneWorks(v.Spans(), at)
}

// someoneWorks reports from when on no slot would take part, if there is such a clock
// from the given one on.
func someoneWorks(spans []perdure.Span, at perdure.Clock) error {
	sorted := slices.SortedFunc(slices.Values(spans), func(a, b perdure.Span) int { return cmp.Compare(a.From, b.From) })
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
	return fmt.Errorf("%w: nobody would be left to work on clock %d; at least one worker must be", perdure.ErrUsage, until)
}

// Plan lets so many slots take part from a clock on, in a job that has not begun.
func (f *Facts) Plan(workers int, at perdure.Clock) error {
	v := &f.View
	if at <= v.Cut || v.End > 0 && at >= v.End {
		return fmt.Errorf("%w: %d workers from clock %d on, in a job of the clocks %d to %d; choose one between", perdure.ErrUsage, workers, at, v.Cut, v.End)
	}
	for _, s := range v.Slots {
		if s.From >= at || s.Until >= at {
			return fmt.Errorf("%w: %d workers from clock %d on, after those of clock %d; name them in the order of their clocks", perdure.ErrUsage, workers, at, max(s.From, s.Until))
		}
	}
	ch, err := f.Scaled(workers, at)
	if err == nil && (ch.Add > 0 || len(ch.Leave) > 0) {
		_, err = f.change(ch, at)
	}
	f.Told = v.Roster // nobody can come to a shard before it knows
	return err
}

// Resume begins with the slots that a checkpoint was saved with.
func (f *Facts) Resume(spans []perdure.Span) {
	v := &f.View
	if len(spans) < len(v.Slots) {
		return // nobody had joined or left
	}
	v.Slots, f.Slots = make([]perdure.SlotView, len(spans)), make([]Place, len(spans))
	for i, s := range spans {
		v.Slots[i].Span, v.Slots[i].Left = s, s.Until > 0 && s.Until <= v.Cut
	}
	v.Roster, f.Told = 1, 1
}

// upTo is the span of a slot that has done its clocks up to the given one; one without
// any clock if these are none.
func upTo(from, until perdure.Clock) perdure.Span {
	if until <= from {
		return perdure.Span{From: from + 1, Until: from + 1}
	}
	return perdure.Span{From: from, Until: until}
}

// SlotClocks returns how many clocks all slots together take part in until clock end.
func (f *Facts) SlotClocks(end perdure.Clock) int64 {
	n := f.PastClocks
	for i := range f.View.Slots {
		n += int64(f.View.Slots[i].Clocks(end))
	}
	return n
}
