package replica

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/consistency"
	"github.com/perdure/perdure/internal/data/wire"
)

// pushes are the changed rows that a shard sends unasked to the slots that have read them: under essp when MinClock has
// advanced, under vap after every change. Each slot receives one round at a time. A round ends with a message that
// names the state that all of the slot's rows have reached, at least.
type pushes struct {
	subs []*consistency.Subscriptions // by table; nil: its rows are not pushed
	seen *consistency.Visibility      // nil: no vap table
	// By slot, if seen is set: how many of its clocks had been seen at the last check.
	reportedSeen []perdure.Clock
	rounds       []pushRound     // by slot
	seq          uint64          // as of the last push
	minClock     perdure.Clock   // MinClock as of the last push
	from         int             // the table that the current round has reached
	ids          []perdure.RowID // scratch: the row numbers of one frame
	flows        uint64          // numbers the flows of connections
}

// pushRound is a round of pushes to one slot on its current connection.
type pushRound struct {
	flow     uint64
	begun    bool
	due      bool // another round must follow, for later changes
	state    wire.State
	minClock perdure.Clock
}

// runBytes is the minimum size of a run of rows that is pushed as a run.
const runBytes = 4 << 10

// restart drops all subscriptions, and sets the number of slots.
func (o *pushes) restart(slots int) {
	*o = pushes{flows: o.flows, ids: o.ids}
	o.grow(slots, nil, 0)
}

// grow adds slots until there are `slots` of them. applied is their applied vector.
func (o *pushes) grow(slots int, applied []perdure.Clock, seq uint64) {
	for len(o.rounds) < slots {
		o.flows++
		o.rounds = append(o.rounds, pushRound{flow: o.flows})
	}
	for _, sub := range o.subs {
		if sub != nil {
			sub.Grow(slots)
		}
	}
	if o.seen != nil {
		o.seen.Grow(applied, seq)
		o.reportedSeen = append(o.reportedSeen, make([]perdure.Clock, slots-len(o.reportedSeen))...)
	}
}

// stop ends the pushes to a slot, whose connection has changed or ended.
func (o *pushes) stop(slot perdure.Slot) {
	o.flows++
	o.rounds[slot] = pushRound{flow: o.flows}
	for _, sub := range o.subs {
		if sub != nil {
			sub.Reset(slot)
		}
	}
}

// opened records that a slot reads nothing from its cache.
func (o *pushes) opened(slot perdure.Slot) {
	if o.seen != nil {
		o.seen.Opened(slot)
	}
}

// active records whether a slot has a process that may read.
func (o *pushes) active(slot perdure.Slot, speaks bool) {
	if o.seen != nil {
		o.seen.SetActive(slot, speaks)
	}
}

// applied records that the clocks of a slot up to last are contained in state seq.
func (o *pushes) applied(slot perdure.Slot, last perdure.Clock, seq uint64) {
	if o.seen != nil {
		o.seen.Applied(slot, last, seq)
	}
}

// subscribe records that a slot is being sent rows of state seq and wants later changes to them. It returns the number
// of rows of the table that the slot is now subscribed to.
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

// changed records which rows an update changes. by is its slot, or NoSlot if the sender cannot derive the result
// itself.
func (o *pushes) changed(rows *wire.Rows, by perdure.Slot) {
	sub := o.subs[rows.Table]
	switch {
	case sub == nil || rows.Count == 0: // ignored, whatever rows it names
	case rows.IDs == nil:
		sub.MarkChangedRun(by, rows.First, rows.Count)
	default:
		for _, id := range rows.IDs {
			sub.MarkChanged(by, id)
		}
	}
}

// wanted reports whether a slot has any subscription.
func (o *pushes) wanted(slot perdure.Slot) bool {
	return slices.ContainsFunc(o.subs, func(s *consistency.Subscriptions) bool { return s != nil && s.Rows(slot) > 0 })
}

// any reports whether rows of any table are pushed.
func (o *pushes) any() bool {
	return slices.ContainsFunc(o.subs, func(s *consistency.Subscriptions) bool { return s != nil })
}

// advance makes the changes so far due to their subscribers.
func (o *pushes) advance() {
	for _, sub := range o.subs {
		if sub != nil {
			sub.Advance()
		}
	}
}

// newlySeen marks the slots that must be told that more of their clocks are seen by all. It reports whether visibility
// is tracked at all.
func (o *pushes) newlySeen(q *readers) bool {
	if o.seen == nil {
		return false
	}
	for slot := range o.reportedSeen {
		if n := o.seen.Seen(perdure.Slot(slot)); n > o.reportedSeen[slot] {
			o.reportedSeen[slot] = n
			q.changed(perdure.Slot(slot))
		}
	}
	return true
}

// raised handles counts that have risen without updates, because of a base, whose missing updates are lost, or of a
// membership interval that starts later. In both cases no reader can lack an update because of it.
func (o *pushes) raised(before, now []perdure.Clock, seq uint64) {
	for slot, n := range now {
		if slot < len(before) && n > before[slot] {
			o.applied(perdure.Slot(slot), n-1, seq)
		}
	}
}
