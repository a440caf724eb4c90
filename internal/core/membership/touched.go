package membership

import (
	"slices"

	"github.com/perdure/perdure"
)

// news gathers what of the view is another than some who hear of it were told last.
type news struct {
	since  uint64 // the revision that they were told; who has come since was told a later one
	due    bool   // some of it they act on: they are to be told all of it now
	tables bool
	shards set
	slots  set
}

// delta returns what is to be told of the view, nil if nothing is, and begins anew.
// What it costs depends on what was touched alone.
func (n *news) delta(v *perdure.View) *perdure.ViewDelta {
	if !n.due {
		return nil
	}
	d := v.Delta(n.since, n.tables, numbers[perdure.ShardID](&n.shards), numbers[perdure.Slot](&n.slots))
	n.since, n.due, n.tables = v.Revision, false, false
	n.shards.clear()
	n.slots.clear()
	return &d
}

// numbers returns what is in a set, in order.
func numbers[N ~int32](s *set) []N {
	list := make([]N, 0, len(s.list))
	for _, i := range s.sorted() {
		list = append(list, N(i))
	}
	return list
}

// course is what of a view is of no one shard or slot.
type course struct {
	generation               perdure.Generation
	cut, end, durable, named perdure.Clock
	pause, done              bool
	roster                   uint64
}

func courseOf(v *perdure.View) course {
	return course{v.Generation, v.Cut, v.End, v.Durable, v.Named, v.Pause, v.Done, v.Roster}
}

// tell puts into r what changed of the view, for those who act on it.
func (c *Core) tell(r *Ready) {
	v := &c.facts.View
	if now := courseOf(v); now != c.course {
		c.course = now
		c.forServers.due, c.forWorkers.due = true, true
	}
	r.Delta, r.WorkerDelta = c.forServers.delta(v), c.forWorkers.delta(v)
	if r.WorkerDelta != nil {
		c.expectant = c.vacant > 0
	}
}

// Shown says that a worker or an observer was told the whole view.
func (c *Core) Shown() { c.expectant = c.expectant || c.vacant > 0 }

// changeShard gives a shard another view. Who copies it is no matter of workers'.
func (c *Core) changeShard(shard int, next perdure.ShardView) {
	before := &c.facts.View.Shards[shard]
	same := before.Holder == next.Holder && slices.Equal(before.Followers, next.Followers) && before.Epoch == next.Epoch &&
		before.Lost == next.Lost && before.Restored == next.Restored && (before.Base == nil) == (next.Base == nil)
	c.forWorkers.due = c.forWorkers.due || !same
	*before = next
	c.forServers.shards.add(shard)
	c.forWorkers.shards.add(shard)
	c.forServers.due, c.dirty = true, true
}

// changeSlot gives a slot another view. A worker needs to know of the others only
// when processes speak for all of them, if some did not when it was told last, and hears
// of its own before it speaks. Of when slots take part all hear, since their number
// is another then; and where some come later, of each that comes.
func (c *Core) changeSlot(slot int, next perdure.SlotView) {
	before := &c.facts.View.Slots[slot]
	if *before == next {
		return
	}
	matters := before.Left != next.Left || c.facts.View.Roster > 0 && vacant(before) && !vacant(&next)
	if vacant(before) {
		c.vacant--
	}
	clock := c.counted(slot)
	*before = next
	c.clocks.move(clock, c.counted(slot))
	c.await(slot)
	c.noteEnd(slot)
	c.wakeEarly()
	if vacant(before) {
		c.vacant++
	}
	c.forServers.slots.add(slot)
	c.forWorkers.slots.add(slot)
	c.forServers.due, c.dirty = true, true
	c.forWorkers.due = c.forWorkers.due || matters || c.vacant == 0 && c.expectant
}

// vacant reports whether no process speaks for a slot.
func vacant(sl *perdure.SlotView) bool { return sl.Incarnation == 0 || !sl.Settled }

func (c *Core) changeTables(tables []perdure.TableSpec) {
	c.facts.View.Tables = tables
	c.forServers.tables, c.forWorkers.tables = true, true
	c.forServers.due, c.forWorkers.due, c.dirty = true, true, true
}
