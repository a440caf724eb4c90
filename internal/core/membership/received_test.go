package membership

import (
	"reflect"
	"slices"

	"github.com/perdure/perdure/internal/core/protocol"
)

// audience is the view of a receiver that was present all the time and receives the deltas, together with the set of
// changes since.
type audience struct {
	view          protocol.View
	shards, slots map[int]bool
}

func newAudience(v *protocol.View) audience {
	return audience{view: *v, shards: map[int]bool{}, slots: map[int]bool{}}
}

// hear applies the delta from one saved view to the next, and verifies it.
func (a *audience) hear(c *cluster, before, after *protocol.View, d *protocol.ViewDelta) {
	for i := range after.Shards {
		a.shards[i] = a.shards[i] || !reflect.DeepEqual(before.Shards[i], after.Shards[i])
	}
	for i := range after.Slots {
		a.slots[i] = a.slots[i] || i >= len(before.Slots) || before.Slots[i] != after.Slots[i]
	}
	if d == nil {
		return
	}
	got, err := d.Apply(&a.view)
	if err != nil || !reflect.DeepEqual(got, *after) {
		c.fail("the delta %+v makes %+v of the view before, want %+v (error: %v)", *d, got, *after, err)
	}
	for _, s := range d.Shards {
		if !a.shards[int(s.Shard)] {
			c.fail("shard %d is sent after %d, but has not changed", s.Shard, d.Base)
		}
	}
	for _, s := range d.Slots {
		if !a.slots[int(s.Slot)] {
			c.fail("slot %d is sent after %d, but has not changed", s.Slot, d.Base)
		}
	}
	*a = newAudience(after)
}

// checkHeard checks that servers and workers know everything that they act on.
func (c *cluster) checkHeard() {
	now := c.saved.View
	known := c.forServers.view
	known.Revision = now.Revision
	if !reflect.DeepEqual(known, now) {
		c.fail("servers have %+v, want %+v", known, now)
	}
	known = c.forWorkers.view
	if !reflect.DeepEqual(common(known), common(now)) || !reflect.DeepEqual(known.Tables, now.Tables) {
		c.fail("workers have %+v, want %+v", known, now)
	}
	for i, sv := range now.Shards {
		was := known.Shards[i]
		was.Joining, was.Yields, sv.Joining, sv.Yields = nil, false, nil, false // irrelevant to workers
		if !reflect.DeepEqual(was, sv) {
			c.fail("workers have %+v for shard %d, want %+v", was, i, sv)
		}
	}
	views := []protocol.View{known}
	for _, w := range c.workers {
		if w.granted && w.connected && w.view.Revision > known.Revision {
			views = append(views, w.view) // it connected later
		}
	}
	if !slices.Equal(known.Intervals(), now.Intervals()) {
		c.fail("workers have the intervals %v, want %v", known.Intervals(), now.Intervals())
	}
	vacancies := func(v *protocol.View) (n int) {
		for i := range v.Slots {
			if v.Slots[i].Incarnation == 0 || !v.Slots[i].Settled {
				n++
			}
		}
		return n
	}
	for i := range views {
		for slot := range views[i].Slots {
			if was, is := &views[i].Slots[slot], &now.Slots[slot]; was.Left != is.Left ||
				now.Roster > 0 && vacant(was) && !vacant(is) {
				c.fail("workers have %+v for slot %d, want %+v", *was, slot, *is)
			}
		}
		if n := vacancies(&views[i]); n > 0 && vacancies(&now) == 0 {
			c.fail("workers wait for %d slots although none is vacant", n)
		}
	}
}

// common returns the part of a view that belongs to all shards, slots and tables.
func common(v protocol.View) protocol.View {
	v.Revision, v.Shards, v.Slots, v.Tables = 0, nil, nil, nil
	return v
}

// vacant reports whether no process speaks for a slot.
func vacant(sl *protocol.SlotView) bool { return sl.Incarnation == 0 || !sl.Settled }
