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
	}
	working, _ := c.job.stand()
	at, err := ch.Clock(working, c.facts.End())
	if err != nil || at == 0 {
		return err
	}
	try := c.facts.Clone()
	if _, err := try.Apply(ch, at); err != nil {
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
