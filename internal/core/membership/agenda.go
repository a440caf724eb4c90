package membership

import (
	"iter"

	"github.com/perdure/perdure"
)

// agenda is what is to be looked at, so that an event costs what it may concern. All of it
// follows from the facts and the observations: whoever changes these touches what they are
// of, and each step takes what is due for it.
type agenda struct {
	stirred bool // something happened that may matter to the shards that are due
	uneven  bool // servers may hold unequal numbers of replicas

	open    set // shards that are, perhaps, not as they should be; the others are ready
	due     set // of those: to be looked at now, something happened that may matter to them
	wanting set // of the open ones: those that wait until there is a server for them
	orphans set // likewise: shards that nobody has the rows of
	mending set // shards that were restored, of which it is not known whether all was sent to them again
	unbased set // lost shards of which it is not known what they begin with

	unjudged set              // servers of which it is to be found out if they are eligible
	away     map[int]struct{} // servers that are awaited, of those that are judged
	leaving  set              // servers that are, perhaps, to end
	healing  map[Kind]*set    // places of which a "serving" event is due once they work again

	woken   set   // slots of which something is, perhaps, to be decided, or settled
	fencing []set // by shard: the slots that wait for its word
	early   set   // slots that wait for the others to come to their first clocks
	ending  set   // slots that are to leave
	calling set   // slots that ask, perhaps, for a cut
}

// newAgenda returns an agenda of a number of shards, with nothing on it.
func newAgenda(shards int) *agenda {
	return &agenda{
		stirred: true, uneven: true,
		away: map[int]struct{}{}, healing: map[Kind]*set{Server: {}, Worker: {}}, fencing: make([]set, shards),
	}
}

// more reports whether there is something left to do for shards or slots.
func (a *agenda) more(placed bool) bool { return a.stirred && placed || len(a.woken.list) > 0 }

// touchShard has a shard looked at, and the slots that wait for its word.
func (a *agenda) touchShard(shard int) {
	a.open.add(shard)
	a.due.add(shard)
	a.wake(perdure.ShardID(shard))
	a.stirred = true
}

// touchServer has a server looked at, and the shards that it holds.
func (a *agenda) touchServer(server int, held iter.Seq[int]) {
	for s := range held {
		a.touchShard(s)
	}
	a.unjudged.add(server)
	a.stirred, a.uneven = true, true
}

// touchSlot has a slot looked at if something is to be decided about it, or carried out.
func (a *agenda) touchSlot(slot int, sl *perdure.SlotView) {
	if !sl.Settled && (sl.Incarnation > 0 || sl.Decided) {
		a.woken.add(slot)
	}
}

// changed has a shard looked at that has another view.
func (a *agenda) changed(shard int, sv *perdure.ShardView) {
	a.orphans.remove(shard)
	a.unbased.put(shard, sv.Lost && sv.Base == nil)
	a.mending.put(shard, sv.Restored)
	a.touchShard(shard)
	a.uneven = true
}

// changedSlot has a slot looked at that has another view, and the slots that wait for the
// others' clocks: this one may have come to them.
func (a *agenda) changedSlot(slot int, sl *perdure.SlotView) {
	a.touchSlot(slot, sl)
	a.ending.put(slot, sl.Until > 0 && !sl.Left)
	a.wakeEarly()
}

// wakeEarly has the slots looked at that wait for the others to come to their first
// clocks: one of these may have.
func (a *agenda) wakeEarly() {
	for _, slot := range a.early.list {
		a.woken.add(slot)
	}
}

// wake has the slots looked at that wait for the word of a shard of which a server
// speaks; false if there is no such shard.
func (a *agenda) wake(s perdure.ShardID) bool {
	if s < 0 || int(s) >= len(a.fencing) {
		return false
	}
	for _, slot := range a.fencing[s].list {
		a.woken.add(slot)
	}
	return true
}

// hears has looked at what a server speaks of: its shard, where that may change a chain;
// else the slots that wait for the shard's word. False: it says nothing that may matter.
func (a *agenda) hears(s perdure.ShardID, before *perdure.ShardWord, now *perdure.ShardDelta, end perdure.Clock) bool {
	switch {
	case before == nil || now == nil || stirs(&before.ShardStatus, &now.ShardStatus):
		if s >= 0 && int(s) < len(a.fencing) {
			a.touchShard(int(s))
		}
	case counts(before, now, end):
		a.wake(s)
	default:
		return false
	}
	return true
}

// nextSlots returns the slots that are to be looked at now, and takes them off.
func (a *agenda) nextSlots() []int {
	slots := a.woken.sorted()
	a.woken.clear()
	return slots
}

// nextShards returns the shards that are due now, and takes them off.
func (a *agenda) nextShards() []int {
	shards := a.due.sorted()
	a.due.clear()
	return shards
}
