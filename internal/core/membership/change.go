package membership

import (
	"fmt"

	"github.com/perdure/perdure"
)

// Scale requests a change of members. The slots pause and report their clocks; then the change is recorded together
// with the clock at which it takes effect, and the slots resume once all shards have received it. Impossible changes
// return perdure.ErrUsage, perdure.ErrRefused or perdure.ErrStopped.
func (c *Core) Scale(ch Change) error {
	v := &c.record.View
	switch {
	case v.Done || c.job.complete || c.record.Failed != "":
		return fmt.Errorf("%w: membership is closed: the job is ending", perdure.ErrStopped)
	case c.record.Change != nil:
		return fmt.Errorf("%w: another membership change is in progress; try again in a moment", perdure.ErrRefused)
	}
	working, _ := c.job.highestClocks()
	at, err := ch.Clock(working, c.record.End())
	if err != nil || at == 0 {
		return err
	}
	try := c.record.Clone()
	if _, err := try.Apply(ch, at); err != nil {
		return err
	}
	set(c.rec, &c.record.Change, &ch)
	c.reconcile()
	return nil
}

// NeedsProcess reports whether a slot that joined the job needs a process and a supervisor must start it.
func (c *Core) NeedsProcess(slot int) bool {
	p, sl := &c.record.Slots[slot], &c.record.View.Slots[slot]
	return sl.From > 0 && !sl.Left && !p.Unmanaged && p.Process == "" && !c.job.isEarly(slot)
}
