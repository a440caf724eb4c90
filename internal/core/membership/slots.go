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

// Scale asks for a change. Slots pause, and say where they stand; then the clock is
// named, the change recorded with it, and they go on once all shards know. What cannot
// be is refused (perdure.ErrUsage, perdure.ErrStopped).
func (c *Core) Scale(ch Change) error {
	v := &c.facts.View
	switch {
	case v.Done || c.complete || c.facts.Failed != "":
		return fmt.Errorf("%w: nobody joins or leaves any more", perdure.ErrStopped)
	case c.facts.Change != nil:
		return fmt.Errorf("%w: the job is just being scaled; try again in a moment", perdure.ErrRefused)
	case ch.Add < 0 || ch.Add > perdure.MaxSlots || len(ch.Leave) > perdure.MaxSlots || len(ch.Again) > perdure.MaxSlots:
		return fmt.Errorf("%w: %d slots more, and %d that leave; a job has at most %d", perdure.ErrUsage, ch.Add, len(ch.Leave), perdure.MaxSlots)
	case ch.Add+len(ch.Leave)+len(ch.Again) == 0:
		return nil
	case ch.At > perdure.MaxClock:
		return fmt.Errorf("%w: clock %d; choose 1 to %d", perdure.ErrUsage, ch.At, perdure.MaxClock)
	case ch.At < 0 || v.End > 0 && ch.At >= v.End:
		return fmt.Errorf("%w: clock %d; the job ends at clock %d", perdure.ErrUsage, ch.At, v.End)
	}
	at := ch.At
	if working, _ := c.stand(); at == 0 {
		at = working + 1
	} else if at <= working {
		return fmt.Errorf("%w: clock %d; the workers are at clock %d already", perdure.ErrUsage, at, working)
	}
	try := c.facts.Clone()
	if _, err := try.change(ch, at); err != nil {
		return err
	}
	c.facts.Change, c.dirty = &ch, true
	c.reconcile()
	return nil
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

// stand returns the highest clock that any slot works on and the highest that any has
// come to by work of its own, as far as is known.
func (c *Core) stand() (working, come perdure.Clock) {
	for i := range c.slots {
		if clock, _ := c.stands(i); clock >= 0 {
			working = max(working, clock)
			if clock > c.facts.View.Slots[i].From {
				come = max(come, clock)
			}
		}
	}
	return working, come
}

// stands returns the clock that a slot is at, as far as is known, -1 if it takes no
// part now; and whether that is where it stands until the pause that there is ends.
func (c *Core) stands(slot int) (at perdure.Clock, surely bool) {
	v, sl, o := &c.facts.View, &c.facts.View.Slots[slot], &c.slots[slot]
	switch w := o.worker; {
	case sl.Left || c.isEarly(slot):
		return -1, true
	case c.facts.Slots[slot].Process == "" && (sl.Settled || sl.Incarnation == 0):
		return max(sl.Start, c.facts.Slots[slot].Made, v.Begin(perdure.Slot(slot))), true // nobody is there: whoever comes hears of it first
	case w == nil || o.gone || !sl.Settled || w.Generation != v.Generation || w.Revision < c.pausedAt:
		return max(o.lastClock, sl.Start, v.Begin(perdure.Slot(slot))), false
	default:
		return max(w.Clock, sl.Start, c.facts.Slots[slot].Made), true // its first words may come before it knows where it begins
	}
}

// isEarly reports whether the job has not come to the clock from which a slot takes
// part, so that nobody is let in for it yet.
func (c *Core) isEarly(slot int) bool {
	sl := &c.facts.View.Slots[slot]
	if sl.From == 0 {
		return false
	}
	reached := c.facts.View.Cut
	for i := range c.slots {
		other := &c.facts.View.Slots[i]
		switch done := max(c.slots[i].lastClock, other.Start); {
		case other.Left:
			reached = max(reached, other.Until) // the only one that had come so far may have gone since
		case i != slot && other.From < sl.From || done > other.From: // else it may be early itself
			reached = max(reached, done)
		}
	}
	return reached+1 < sl.From
}

// Awaited reports whether a slot that joined the job needs a process, which somebody is to start.
func (c *Core) Awaited(slot int) bool {
	p, sl := &c.facts.Slots[slot], &c.facts.View.Slots[slot]
	return sl.From > 0 && !sl.Left && !p.Guest && p.Process == "" && !c.isEarly(slot)
}

// decidePause ends what slots pause for once every slot has said, of its pause, at
// which clock it stands. The highest of these is the job's end, if that is what is
// asked: so no shard has an update beyond it. From the next one on others take part, if
// that is: so everybody hears of it before. The pause goes on until all shards have.
func (c *Core) decidePause() {
	v := &c.facts.View
	c.wantCut()
	if v.Pause {
		c.endPause()
	}
	if c.facts.Told < v.Roster && c.rosterTold() {
		c.facts.Told, c.dirty = v.Roster, true
	}
	if c.facts.CutTold < v.Named && c.cutTold() {
		c.facts.CutTold, c.dirty = v.Named, true
	}
	pause := c.facts.Ending || c.facts.Change != nil || c.facts.Told < v.Roster || c.facts.Cutting || c.facts.CutTold < v.Named
	if pause == v.Pause {
		return
	}
	if v.Pause, c.dirty = pause, true; pause && !c.course.pause { // else nobody was told that it had ended
		c.pausedAt = v.Revision + 1
	}
}

// endPause names what the slots have paused for, if all of them have said where they
// stand.
func (c *Core) endPause() {
	if c.facts.View.Revision < c.pausedAt {
		return // it is in no view yet
	}
	if !c.paused.all(len(c.slots), func(i int) bool { _, surely := c.stands(i); return surely }) {
		return
	}
	working, come := c.stand()
	if c.facts.Ending {
		c.facts.Ending, c.dirty = false, true
		if end := max(come, 1); c.facts.View.End == 0 || end < c.facts.View.End {
			c.endAt(end)
		}
	}
	if ch := c.facts.Change; ch != nil {
		c.facts.Change, c.dirty = nil, true
		c.changeNow(*ch, working)
	}
	if c.facts.Cutting {
		c.nameCut(working)
	}
}

// rosterTold reports whether every shard goes by the newest spans.
func (c *Core) rosterTold() bool {
	return c.told.all(len(c.facts.View.Shards), func(i int) bool {
		st := c.shardStatus(i)
		return st != nil && st.Ready && st.Roster >= c.facts.View.Roster
	})
}

// changeNow names a change's clock, all slots standing at the given one or before it.
func (c *Core) changeNow(ch Change, working perdure.Clock) {
	v, at := &c.facts.View, ch.At
	if at == 0 {
		at = working + 1
	}
	if at <= working || v.End > 0 && at >= v.End {
		c.event("scaled", "", "nobody joins or leaves: clock %d is over, or the job ends before", at)
		return
	}
	ch.Leave = slices.DeleteFunc(slices.Clone(ch.Leave), func(slot perdure.Slot) bool {
		if !c.abandoned(int(slot)) {
			return false
		}
		c.suspend(int(slot), fmt.Sprintf("worker:%d, whose process is gone, leaves", slot))
		return true // nobody would do its clocks until then
	})
	if ch.Add+len(ch.Leave)+len(ch.Again) == 0 {
		return
	}
	next := c.facts.Clone()
	joined, err := next.change(ch, at)
	if err != nil { // it was tried when it was asked for
		c.event("scaled", "", "nobody joins or leaves: %v", err)
		return
	}
	for i := len(c.slots); i < len(next.Slots); i++ {
		c.slots = append(c.slots, observed{})
		v.Slots = append(v.Slots, perdure.SlotView{})
		c.vacant++
		c.clocks.move(-1, c.counted(i))
	}
	c.facts.Slots, c.facts.PastClocks, v.Roster = next.Slots, next.PastClocks, next.View.Roster
	for i := range v.Slots {
		c.changeSlot(i, next.View.Slots[i])
	}
	for _, i := range joined {
		c.setClock(i, at-1)
		c.slots[i] = observed{lastClock: at - 1, fenced: c.slots[i].fenced}
		c.event("scaled", target(Worker, i), "worker:%d joins; it takes part from clock %d on", i, at)
	}
	for _, slot := range ch.Leave {
		c.event("scaled", target(Worker, int(slot)), "worker:%d leaves; clock %d is its last", slot, at-1)
	}
}

// SuspendAfter has slots suspended that nobody has spoken for so many ticks, where
// clocks are not ticked; 0: none.
func (c *Core) SuspendAfter(ticks int64) { c.grace = ticks }

// suspendVacant suspends the slots that nobody speaks for.
func (c *Core) suspendVacant() {
	for i := range c.slots {
		if c.grace > 0 && c.abandoned(i) && c.watch.Silence(&c.slots[i].ear) > c.grace {
			c.suspend(i, fmt.Sprintf("nobody has come for worker:%d", i))
		}
	}
}

// abandoned reports whether a slot's process is gone, all shards agree on what it had
// done, and the others may go on without the rest.
func (c *Core) abandoned(slot int) bool {
	p, sl := &c.facts.Slots[slot], &c.facts.View.Slots[slot]
	return !c.twoStep() && p.Process == "" && p.Incarnation > 0 && sl.Settled && !sl.Left
}

// suspend ends a slot's part in the job at the clock that it had come to on every
// shard. Shards that have more of it keep that.
func (c *Core) suspend(slot int, why string) {
	v := &c.facts.View
	now := upTo(v.Slots[slot].From, v.Slots[slot].Start)
	spans := v.Spans()
	if spans[slot] = now; someoneWorks(spans, c.MinClock()) != nil {
		return
	}
	v.Roster++
	next := v.Slots[slot]
	next.Span, next.Left, c.facts.Slots[slot].Suspended = now, true, true
	c.changeSlot(slot, next)
	c.healing[Worker].remove(slot)
	c.event("scaled", target(Worker, slot), "%s; the others go on without it from clock %d on", why, now.Until)
}

// upTo is the span of a slot that has done its clocks up to the given one; one without
// any clock if these are none.
func upTo(from, until perdure.Clock) perdure.Span {
	if until <= from {
		return perdure.Span{From: from + 1, Until: from + 1}
	}
	return perdure.Span{From: from, Until: until}
}

// cutSuspended ends the parts of suspended slots where a roll-back goes back to, for
// nobody does their later clocks again.
func (c *Core) cutSuspended() {
	v := &c.facts.View
	shorter := false
	for i := range v.Slots {
		if sl := &v.Slots[i]; c.facts.Slots[i].Suspended && sl.Until > max(v.Cut, sl.From) {
			next := *sl
			next.Span, shorter = upTo(sl.From, v.Cut), true
			c.changeSlot(i, next)
		}
	}
	if shorter {
		v.Roster++
	}
}

// leave lets the slots go that have done their last clock, where no roll-back can go
// back before it.
func (c *Core) leave() {
	v := &c.facts.View
	for _, i := range c.ending.sorted() {
		sl := &v.Slots[i]
		if !c.spanDone(i) {
			continue
		}
		if c.traits.Saves() && v.Durable < sl.Until {
			c.calling.add(i)
			continue
		}
		next := *sl
		next.Left = true
		c.changeSlot(i, next)
		c.healing[Worker].remove(i)
		c.event("left", target(Worker, i), "worker:%d has left at clock %d", i, sl.Until)
	}
}

// spanDone reports whether a slot that is to leave has done its last clock.
func (c *Core) spanDone(slot int) bool {
	v, sl, o := &c.facts.View, &c.facts.View.Slots[slot], &c.slots[slot]
	if w := o.worker; w != nil && !o.gone && sl.Settled && w.Generation == v.Generation {
		return w.Finished && w.Clock >= sl.Until
	}
	return c.facts.Slots[slot].Process == "" && sl.Settled && sl.Start >= sl.Until
}

// SlotClocks returns how many clocks all slots together take part in until clock end.
func (f *Facts) SlotClocks(end perdure.Clock) int64 {
	n := f.PastClocks
	for i := range f.View.Slots {
		n += int64(f.View.Slots[i].Clocks(end))
	}
	return n
}

// vacate fences a slot's incarnations so far; its fate is to be decided.
func (c *Core) vacate(slot int) {
	p, sl := &c.facts.Slots[slot], &c.facts.View.Slots[slot]
	spoke := p.Process != "" && sl.Settled
	p.Process, p.PID, c.dirty = "", 0, true
	if sl.Left {
		return // nobody comes after it
	}
	p.Incarnation++
	c.changeSlot(slot, perdure.SlotView{Incarnation: p.Incarnation, Span: sl.Span})
	if lacks := p.AtCuts && !c.complete && !c.facts.View.Done; lacks {
		p.AtCuts = false // its next process says it anew
		c.rollBack("what worker:%d was to keep is saved for checkpoints only", slot)
	} else if spoke {
		c.outlives(slot)
	}
}

// MinClock returns the least clock of all slots, as far as is known.
func (c *Core) MinClock() perdure.Clock {
	return max(c.clocks.least, c.facts.View.Cut) // nobody works below it, also before all have reported
}
