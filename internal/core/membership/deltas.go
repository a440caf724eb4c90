package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// A deltaTracker records which revision of the view was last sent to the servers, and to the workers and observers, and
// what has changed since. The cost of a delta therefore depends only on what has changed, however large the job is.
// Servers receive every change; workers receive those that they act on. A deltaTracker is not safe for concurrent use.

// pendingChanges collects the changes of the view since the last delta for one group of receivers.
type pendingChanges struct {
	since  uint64 // the revision that they received last; processes that joined since received a later one
	due    bool   // a change concerns them, so all changes must be sent now
	tables bool
	shards numberSet
	slots  numberSet
}

// delta returns the view delta to send, or nil if none is due, and starts to collect afresh. Its cost depends only on
// the number of changes.
func (n *pendingChanges) delta(v *protocol.View) *protocol.ViewDelta {
	if !n.due {
		return nil
	}
	d := protocol.DeltaOf(v, n.since, n.tables, numbers[perdure.ShardID](&n.shards), numbers[perdure.Slot](&n.slots))
	n.since, n.due, n.tables = v.Revision, false, false
	n.shards.Clear()
	n.slots.Clear()
	return &d
}

// numbers returns the elements of a set in ascending order.
func numbers[N ~int32](s *numberSet) []N {
	list := make([]N, 0, s.Len())
	for _, i := range s.Sorted() {
		list = append(list, N(i))
	}
	return list
}

// jobFields is the part of a view that belongs to all shards and slots.
type jobFields struct {
	generation               perdure.Generation
	cut, end, durable, named perdure.Clock
	tentative, pause, done   bool
	roster, hold             uint64
}

func jobFieldsOf(v *protocol.View) jobFields {
	return jobFields{v.Generation, v.Cut, v.End, v.Durable, v.Named, v.Tentative, v.Pause, v.Done, v.Roster, v.Hold}
}

// vacantSlot reports whether no process speaks for a slot.
func vacantSlot(sl *protocol.SlotView) bool { return sl.Incarnation == 0 || !sl.Settled }

// deltaTracker is the delta state of both groups of receivers.
type deltaTracker struct {
	jobFields    jobFields // as last sent
	servers      pendingChanges
	workers      pendingChanges
	left         bool // a slot has left since the last delta
	vacant       int  // number of vacant slots
	awaitsVacant bool // a worker or observer was sent a view with vacant slots
}

// newDeltaTracker returns a tracker for a view that every process has received.
func newDeltaTracker(v *protocol.View) deltaTracker {
	t := deltaTracker{
		jobFields: jobFieldsOf(v), servers: pendingChanges{since: v.Revision},
		workers: pendingChanges{since: v.Revision},
	}
	for i := range v.Slots {
		if vacantSlot(&v.Slots[i]) {
			t.vacant++
		}
	}
	return t
}

// Deltas returns the changes of the view for servers, and for workers and observers; nil: no change that concerns them.
func (t *deltaTracker) Deltas(v *protocol.View) (servers, workers *protocol.ViewDelta) {
	if now := jobFieldsOf(v); now != t.jobFields {
		t.jobFields = now
		t.servers.due, t.workers.due = true, true
	}
	t.left = false
	servers, workers = t.servers.delta(v), t.workers.delta(v)
	if workers != nil {
		t.awaitsVacant = t.vacant > 0
	}
	return servers, workers
}

// ViewSent records that a worker or an observer was sent the whole view.
func (t *deltaTracker) ViewSent() { t.awaitsVacant = t.awaitsVacant || t.vacant > 0 }

// Shard records that a shard's view changes. Workers need not know which server copies it.
func (t *deltaTracker) Shard(shard int, before, next *protocol.ShardView) {
	same := before.Holder == next.Holder && slices.Equal(before.Followers, next.Followers) &&
		before.Epoch == next.Epoch &&
		before.Lost == next.Lost && before.Restored == next.Restored && (before.Base == nil) == (next.Base == nil)
	t.servers.shards.Add(shard)
	t.workers.shards.Add(shard)
	t.servers.due, t.workers.due = true, t.workers.due || !same
}

// Slot records that a slot's view changes. A worker needs to know about other slots only when the last vacant one is
// taken, if it has seen vacant ones; it learns about its own slot before it speaks. Membership intervals matter to all
// workers, since they change the number of slots. If slots may join later, each arrival matters as well. So does the
// start of a slot to a worker that saves its shared state for that slot.
func (t *deltaTracker) Slot(slot int, before, next *protocol.SlotView, later bool) {
	t.left = t.left || next.Left && !before.Left
	matters := before.Left != next.Left || before.Source != next.Source ||
		later && vacantSlot(before) && !vacantSlot(next)
	if vacantSlot(before) {
		t.vacant--
	}
	if vacantSlot(next) {
		t.vacant++
	}
	t.servers.slots.Add(slot)
	t.workers.slots.Add(slot)
	t.servers.due, t.workers.due = true, t.workers.due || matters || t.vacant == 0 && t.awaitsVacant
}

// Tables records that the tables have changed.
func (t *deltaTracker) Tables() {
	t.servers.tables, t.workers.tables = true, true
	t.servers.due, t.workers.due = true, true
}

// Add records one more vacant slot.
func (t *deltaTracker) Add() { t.vacant++ }

// Left reports whether a slot has left since the last delta. Its process ends gracefully if it receives this first, but
// is rejected if it first learns that the slot was reassigned.
func (t *deltaTracker) Left() bool { return t.left }

// Paused reports whether workers pause, according to the last delta.
func (t *deltaTracker) Paused() bool { return t.jobFields.pause }
