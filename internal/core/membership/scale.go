package membership

import (
	"fmt"

	"github.com/perdure/perdure"
)

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
	if working, _ := c.job.stand(); at == 0 {
		at = working + 1
	} else if at <= working {
		return fmt.Errorf("%w: clock %d; the workers are at clock %d already", perdure.ErrUsage, at, working)
	}
	try := c.facts.Clone()
	if _, err := try.change(ch, at); err != nil {
		return err
	}
	c.facts.Change, c.rec.dirty = &ch, true
	c.reconcile()
	return nil
}

// Awaited reports whether a slot that joined the job needs a process, which somebody is to start.
func (c *Core) Awaited(slot int) bool {
	p, sl := &c.facts.Slots[slot], &c.facts.View.Slots[slot]
	return sl.From > 0 && !sl.Left && !p.Guest && p.Process == "" && !c.job.isEarly(slot)
}
