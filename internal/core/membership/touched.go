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

// vacant reports whether no process speaks for a slot.
func vacant(sl *perdure.SlotView) bool { return sl.Incarnation == 0 || !sl.Settled }

// teller knows what of the view those who act on it were told last, and what is another
// since.
type teller struct {
	course    course // that was told last
	servers   news
	workers   news
	vacant    int  // slots
	expectant bool // of those some workers or observers know
}

func newTeller(v *perdure.View) teller {
	t := teller{course: courseOf(v), servers: news{since: v.Revision}, workers: news{since: v.Revision}}
	for i := range v.Slots {
		if vacant(&v.Slots[i]) {
			t.vacant++
		}
	}
	return t
}

// tell returns what changed of the view, for servers and for workers and observers; nil:
// nothing that they act on.
func (t *teller) tell(v *perdure.View) (servers, workers *perdure.ViewDelta) {
	if now := courseOf(v); now != t.course {
		t.course = now
		t.servers.due, t.workers.due = true, true
	}
	servers, workers = t.servers.delta(v), t.workers.delta(v)
	if workers != nil {
		t.expectant = t.vacant > 0
	}
	return servers, workers
}

// shown notes that a worker or an observer was told the whole view.
func (t *teller) shown() { t.expectant = t.expectant || t.vacant > 0 }

// shard notes that a shard gets another view. Who copies it is no matter of workers'.
func (t *teller) shard(shard int, before, next *perdure.ShardView) {
	same := before.Holder == next.Holder && slices.Equal(before.Followers, next.Followers) && before.Epoch == next.Epoch &&
		before.Lost == next.Lost && before.Restored == next.Restored && (before.Base == nil) == (next.Base == nil)
	t.servers.shards.add(shard)
	t.workers.shards.add(shard)
	t.servers.due, t.workers.due = true, t.workers.due || !same
}

// slot notes that a slot gets another view. A worker needs to know of the others only when
// processes speak for all of them, if some did not when it was told last, and hears of its
// own before it speaks. Of when slots take part all hear, since their number is another
// then; and where some come later, of each that comes.
func (t *teller) slot(slot int, before, next *perdure.SlotView, later bool) {
	matters := before.Left != next.Left || later && vacant(before) && !vacant(next)
	if vacant(before) {
		t.vacant--
	}
	if vacant(next) {
		t.vacant++
	}
	t.servers.slots.add(slot)
	t.workers.slots.add(slot)
	t.servers.due, t.workers.due = true, t.workers.due || matters || t.vacant == 0 && t.expectant
}

// tables notes that there are others.
func (t *teller) tables() {
	t.servers.tables, t.workers.tables = true, true
	t.servers.due, t.workers.due = true, true
}
