package membership

import (
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// A deltaTracker knows which revision of the view servers, workers and observers received last, and what has changed
// since. Sending a change therefore costs what was touched, however large the job is. Servers receive every change;
// workers receive those that they act on. A deltaTracker is not safe for concurrent use.

// news gathers what has changed of the view since some were told of it last.
type news struct {
	since  uint64 // the revision that they were told; who has come since was told a later one
	due    bool   // some of it they act on: they are to be told all of it now
	tables bool
	shards numberSet
	slots  numberSet
}

// delta returns what is to be told of the view, nil if nothing is, and begins anew.
// What it costs depends on what was touched alone.
func (n *news) delta(v *words.View) *words.ViewDelta {
	if !n.due {
		return nil
	}
	d := words.DeltaOf(v, n.since, n.tables, numbers[perdure.ShardID](&n.shards), numbers[perdure.Slot](&n.slots))
	n.since, n.due, n.tables = v.Revision, false, false
	n.shards.Clear()
	n.slots.Clear()
	return &d
}

// numbers returns what is in a set, in order.
func numbers[N ~int32](s *numberSet) []N {
	list := make([]N, 0, s.Len())
	for _, i := range s.Sorted() {
		list = append(list, N(i))
	}
	return list
}

// course is the part of a view that belongs to all shards and slots.
type course struct {
	generation               perdure.Generation
	cut, end, durable, named perdure.Clock
	tentative, pause, done   bool
	roster                   uint64
}

func courseOf(v *words.View) course {
	return course{v.Generation, v.Cut, v.End, v.Durable, v.Named, v.Tentative, v.Pause, v.Done, v.Roster}
}

// vacantSlot reports whether no process speaks for a slot.
func vacantSlot(sl *words.SlotView) bool { return sl.Incarnation == 0 || !sl.Settled }

// deltaTracker is what was told to all, and what is to be.
type deltaTracker struct {
	course    course // that was told last
	servers   news
	workers   news
	left      bool // a slot has, and nobody was told
	vacant    int  // slots
	expectant bool // of those some workers or observers know
}

// newDeltaTracker returns a teller of a view that everybody knows.
func newDeltaTracker(v *words.View) deltaTracker {
	t := deltaTracker{course: courseOf(v), servers: news{since: v.Revision}, workers: news{since: v.Revision}}
	for i := range v.Slots {
		if vacantSlot(&v.Slots[i]) {
			t.vacant++
		}
	}
	return t
}

// Tell returns what changed of the view, for servers and for workers and observers; nil:
// nothing that they act on.
func (t *deltaTracker) Tell(v *words.View) (servers, workers *words.ViewDelta) {
	if now := courseOf(v); now != t.course {
		t.course = now
		t.servers.due, t.workers.due = true, true
	}
	t.left = false
	servers, workers = t.servers.delta(v), t.workers.delta(v)
	if workers != nil {
		t.expectant = t.vacant > 0
	}
	return servers, workers
}

// Shown notes that a worker or an observer was told the whole view.
func (t *deltaTracker) Shown() { t.expectant = t.expectant || t.vacant > 0 }

// drainingShard notes that a shard gets another view. Who copies it is no matter of workers'.
func (t *deltaTracker) Shard(shard int, before, next *words.ShardView) {
	same := before.Holder == next.Holder && slices.Equal(before.Followers, next.Followers) &&
		before.Epoch == next.Epoch &&
		before.Lost == next.Lost && before.Restored == next.Restored && (before.Base == nil) == (next.Base == nil)
	t.servers.shards.Add(shard)
	t.workers.shards.Add(shard)
	t.servers.due, t.workers.due = true, t.workers.due || !same
}

// slotGaps notes that a slot gets another view. A worker needs to know of the others only when
// processes speak for all of them, if some did not when it was told last, and hears of its
// own before it speaks. Of when slots take part all hear, since their number is another
// then; and where some come later, of each that comes.
func (t *deltaTracker) Slot(slot int, before, next *words.SlotView, later bool) {
	t.left = t.left || next.Left && !before.Left
	matters := before.Left != next.Left || later && vacantSlot(before) && !vacantSlot(next)
	if vacantSlot(before) {
		t.vacant--
	}
	if vacantSlot(next) {
		t.vacant++
	}
	t.servers.slots.Add(slot)
	t.workers.slots.Add(slot)
	t.servers.due, t.workers.due = true, t.workers.due || matters || t.vacant == 0 && t.expectant
}

// Tables notes that there are others.
func (t *deltaTracker) Tables() {
	t.servers.tables, t.workers.tables = true, true
	t.servers.due, t.workers.due = true, true
}

// Add notes that there is one more slot, which nobody speaks for.
func (t *deltaTracker) Add() { t.vacant++ }

// Left reports whether a slot has left of which nobody was told. Whoever had it ends in order if it hears so, and is
// turned away if it hears first that the slot was given anew.
func (t *deltaTracker) Left() bool { return t.left }

// Paused reports whether workers pause by what they were told last.
func (t *deltaTracker) Paused() bool { return t.course.pause }
