package membership

import "github.com/perdure/perdure"

// Closing is what is known of the last checkpoint of a job that is to end early.
type Closing struct {
	Named bool          `json:"named"` // it is named
	Cut   perdure.Clock `json:"cut"`   // of which clock
}

// Close asks for a last checkpoint, of the earliest clock that every slot can still
// meet, since the job is to end. All goes on meanwhile, and who dies is replaced: whoever
// asks waits until Closed, or for as long as there is time. Asking again is safe.
func (c *Core) Close() {
	if c.facts.Closing == nil && c.traits.Saves() {
		c.facts.Closing, c.dirty = &Closing{}, true
		c.reconcile()
	}
}

// Closed reports whether, of a job that is to end, all that can be kept is. It is not
// where the last cut is the job's own end: then the job is complete in a moment.
func (c *Core) Closed() bool {
	v, last := &c.facts.View, c.facts.Closing
	switch {
	case last == nil:
		return false
	case !c.placed():
		return true // nobody has begun
	}
	return last.Named && v.Durable >= last.Cut && (v.End == 0 || v.Durable < v.End)
}

// closes reports whether the last cut is to be named: it was not yet, or there will be no
// checkpoint of it.
func (c *Core) closes() bool {
	last := c.facts.Closing
	return last != nil && (!last.Named || c.facts.View.Durable < last.Cut)
}

// nameLast notes of which clock the last checkpoint is.
func (c *Core) nameLast(cut perdure.Clock) {
	if c.closes() {
		c.facts.Closing, c.dirty = &Closing{Named: true, Cut: cut}, true
	}
}
