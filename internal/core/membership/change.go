package membership

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/recovery"
	"github.com/perdure/perdure/internal/core/spans"
)

// Change is a change of who takes part in the job.
type Change = spans.Change

// Scaled returns what has to change for a number of slots to take part.
func (f *Facts) Scaled(workers int, at perdure.Clock) (Change, error) {
	return spans.Scaled(f.View.Slots, workers, at)
}

// change names the clock of a change.
func (f *Facts) change(ch Change, at perdure.Clock) (joined []int, err error) {
	v := &f.View
	before := slices.Clone(v.Slots)
	next, joined, past, err := ch.Apply(v.Slots, at)
	if next == nil {
		return nil, err
	}
	v.Slots, f.PastClocks = next, f.PastClocks+past
	f.Slots = append(f.Slots, make([]Place, len(next)-len(f.Slots))...)
	for _, i := range joined {
		p := Place{Incarnation: next[i].Incarnation, Guest: ch.Guest, Unkept: f.Slots[i].Unkept}
		if i < len(before) && before[i].Until > v.Durable && recovery.Of(f.Job.Recovery).Traits().Partial {
			p.Former = append(slices.Clone(f.Slots[i].Former), before[i].Span)
		}
		f.Slots[i] = p
	}
	v.Roster++
	return joined, err
}

// Plan lets n slots take part from a clock on, in a job that has not begun.
func (f *Facts) Plan(workers int, at perdure.Clock) error {
	v := &f.View
	ch, err := spans.Planned(v, workers, at)
	if err == nil && (ch.Add > 0 || len(ch.Leave) > 0) {
		_, err = f.change(ch, at)
	}
	f.Told = v.Roster // nobody can come to a shard before it knows
	return err
}

// Resume begins with the slots that a checkpoint was saved with.
func (f *Facts) Resume(saved []perdure.Span) {
	v := &f.View
	if len(saved) < len(v.Slots) {
		return // nobody had joined or left
	}
	v.Slots, f.Slots = spans.Resumed(saved, v.Cut), make([]Place, len(saved))
	v.Roster, f.Told = 1, 1
}

// SlotClocks returns how many clocks all slots together take part in until clock end.
func (f *Facts) SlotClocks(end perdure.Clock) int64 {
	return f.PastClocks + spans.Clocks(f.View.Slots, end)
}

// Scale asks for a change. Slots pause, and say where they stand; then the clock is
// named, the change recorded with it, and they go on once all shards know. What cannot
// be is refused (perdure.ErrUsage, perdure.ErrStopped).
func (c *Core) Scale(ch Change) error {
	v := &c.facts.View
	switch {
	case v.Done || c.job.complete || c.facts.Failed != "":
		return fmt.Errorf("%w: nobody joins or leaves any more", perdure.ErrStopped)
	case c.facts.Change != nil:
		return fmt.Errorf("%w: the job is just being scaled; try again in a moment", perdure.ErrRefused)
	}
	working, _ := c.job.stand()
	at, err := ch.Clock(working, v.End)
	if err != nil || at == 0 {
		return err
	}
	try := c.facts.Clone()
	if _, err := try.change(ch, at); err != nil {
		return err
	}
	set(c.rec, &c.facts.Change, &ch)
	c.reconcile()
	return nil
}

// Awaited reports whether a slot that joined the job needs a process, which somebody is to start.
func (c *Core) Awaited(slot int) bool {
	p, sl := &c.facts.Slots[slot], &c.facts.View.Slots[slot]
	return sl.From > 0 && !sl.Left && !p.Guest && p.Process == "" && !c.job.isEarly(slot)
}
