package replica

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// pushes are what a shard sends by itself: rows that changed, to the slots that have read
// them. Under essp they go out when its MinClock has advanced, under vap with every change.
// They go out in rounds, one after the other to each slot: a round ends with word of which
// state all of the slot's rows then have, at least.
type pushes struct {
	subs []*consistency.Subscriptions // by table; nil: its rows are not pushed
	seen *consistency.Visibility      // nil: no table is vap
	// By slot, with seen: how many of its clocks were seen when that was last looked at.
	told   []perdure.Clock
	rounds []round         // by slot
	seq    uint64          // as of the last push
	least  perdure.Clock   // MinClock as of the last push
	from   int             // the table that the present round has come to
	ids    []perdure.RowID // room for those of one frame
	flows  uint64          // numbers connections' flows
}

// round is what goes to one slot on its present connection.
type round struct {
	flow     uint64
	begun    bool
	due      bool // another is to follow, for what has changed since
	state    wire.State
	minClock perdure.Clock
}

// runBytes is the least size of a run of rows that is pushed as a run.
const runBytes = 4 << 10

// restart forgets all that is pushed, to a number of slots.
func (o *pushes) restart(slots int) {
	*o = pushes{flows: o.flows, ids: o.ids}
	o.grow(slots, nil, 0)
}

// grow makes room for a number of slots, whose applied vector is given.
func (o *pushes) grow(slots int, applied []perdure.Clock, seq uint64) {
	for len(o.rounds) < slots {
		o.flows++
		o.rounds = append(o.rounds, round{flow: o.flows})
	}
	for _, sub := range o.subs {
		if sub != nil {
			sub.Grow(slots)
		}
	}
	if o.seen != nil {
		o.seen.Grow(applied, seq)
		o.told = append(o.told, make([]perdure.Clock, slots-len(o.told))...)
	}
}

// stop forgets what is pushed to a slot: its connection is another one from now on, or none.
func (o *pushes) stop(slot perdure.Slot) {
	o.flows++
	o.rounds[slot] = round{flow: o.flows}
	for _, sub := range o.subs {
		if sub != nil {
			sub.Reset(slot)
		}
	}
}

// opened notes that a slot reads nothing from its cache.
func (o *pushes) opened(slot perdure.Slot) {
	if o.seen != nil {
		o.seen.Opened(slot)
	}
}

// active notes whether a slot has a process that may read.
func (o *pushes) active(slot perdure.Slot, speaks bool) {
	if o.seen != nil {
		o.seen.SetActive(slot, speaks)
	}
}

// applied notes that the clocks of a slot up to the last are in state seq.
func (o *pushes) applied(slot perdure.Slot, last perdure.Clock, seq uint64) {
	if o.seen != nil {
		o.seen.Applied(slot, last, seq)
	}
}

// subscribe notes that a slot is being sent rows of state seq, and wants to be sent what
// becomes of them. It returns of how many rows of the table the slot is, now.
func (o *pushes) subscribe(slot perdure.Slot, rows *wire.Rows, vap bool, seq uint64) int {
	sub := o.subs[rows.Table]
	if sub == nil || rows.Count == 0 {
		return 0
	}
	if rows.IDs == nil {
		sub.AddRun(slot, rows.First, rows.Count)
	}
	for _, id := range rows.IDs {
		sub.Add(slot, id)
	}
	if vap && o.seen != nil {
		o.seen.Answered(slot, seq)
	}
	return sub.Rows(slot)
}

// changed notes that an update of a slot changes rows; NoSlot: of nobody who can tell itself
// what its update does to them.
func (o *pushes) changed(rows *wire.Rows, by perdure.Slot) {
	sub := o.subs[rows.Table]
	switch {
	case sub == nil || rows.Count == 0: // whatever row it names
	case rows.IDs == nil:
		sub.ChangedRun(by, rows.First, rows.Count)
	default:
		for _, id := range rows.IDs {
			sub.Changed(by, id)
		}
	}
}

// wanted reports whether a slot is subscribed to anything.
func (o *pushes) wanted(slot perdure.Slot) bool {
	return slices.ContainsFunc(o.subs, func(s *consistency.Subscriptions) bool { return s != nil && s.Rows(slot) > 0 })
}

// any reports whether rows of any table are pushed.
func (o *pushes) any() bool {
	return slices.ContainsFunc(o.subs, func(s *consistency.Subscriptions) bool { return s != nil })
}

// advance makes what has changed due to those who are subscribed to it.
func (o *pushes) advance() {
	for _, sub := range o.subs {
		if sub != nil {
			sub.Advance()
		}
	}
}

// newlySeen marks the slots of whose clocks more are seen by all than they were told, and
// reports whether what is seen counts.
func (o *pushes) newlySeen(q *readers) bool {
	if o.seen == nil {
		return false
	}
	for slot := range o.told {
		if n := o.seen.Seen(perdure.Slot(slot)); n > o.told[slot] {
			o.told[slot] = n
			q.changed(perdure.Slot(slot))
		}
	}
	return true
}

// raised follows up when counts have risen without updates: by a base, what the rows lack of
// which is lost, or by the spans of slots that begin later. Nobody can see less of that.
func (o *pushes) raised(before, now []perdure.Clock, seq uint64) {
	for slot, n := range now {
		if slot < len(before) && n > before[slot] {
			o.applied(perdure.Slot(slot), n-1, seq)
		}
	}
}
