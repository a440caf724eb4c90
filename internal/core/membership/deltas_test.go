package membership

import (
	"reflect"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/words"
)

// TestWhoHears checks which changes are sent to whom: servers receive all, workers those that they act on.
func TestWhoHears(t *testing.T) {
	settled := words.SlotView{Incarnation: 1, Decided: true, Settled: true}
	head := words.Holder{Server: 0, Incarnation: 1}
	for name, c := range map[string]struct {
		change  func(v *words.View, t *deltaTracker)
		servers bool
		workers bool
	}{
		"nothing":        {func(*words.View, *deltaTracker) {}, false, false},
		"a cut is named": {func(v *words.View, _ *deltaTracker) { v.Named = 7 }, true, true},
		"another head": {func(v *words.View, t *deltaTracker) {
			next := words.ShardView{Holder: words.Holder{Server: 1, Incarnation: 1}, Epoch: 2}
			t.Shard(0, &v.Shards[0], &next)
			v.Shards[0] = next
		}, true, true},
		"a server starts to copy": {func(v *words.View, t *deltaTracker) {
			next := v.Shards[0]
			next.Joining = &words.Holder{Server: 1, Incarnation: 1}
			t.Shard(0, &v.Shards[0], &next)
			v.Shards[0] = next
		}, true, false},
		"a worker died": {func(v *words.View, t *deltaTracker) {
			t.Slot(0, &v.Slots[0], &words.SlotView{Incarnation: 2}, false)
			v.Slots[0] = words.SlotView{Incarnation: 2}
		}, true, false},
		"a slot has left": {func(v *words.View, t *deltaTracker) {
			next := v.Slots[0]
			next.Left = true
			t.Slot(0, &v.Slots[0], &next, false)
			v.Slots[0] = next
		}, true, true},
		"a table": {func(v *words.View, t *deltaTracker) {
			v.Tables = append(v.Tables, perdure.TableSpec{Name: "w"})
			t.Tables()
		}, true, true},
	} {
		v := &words.View{
			Revision: 4, Shards: []words.ShardView{{Holder: head, Epoch: 1}},
			Slots: []words.SlotView{settled, settled},
		}
		before := v.Clone()
		teller := newDeltaTracker(v)
		c.change(v, &teller)
		v.Revision++
		servers, workers := teller.Deltas(v)
		if (servers != nil) != c.servers || (workers != nil) != c.workers {
			t.Errorf("%s: servers receive %+v, workers %+v", name, servers, workers)
		}
		for _, d := range []*words.ViewDelta{servers, workers} {
			if d == nil {
				continue
			}
			if got, err := d.Apply(&before); err != nil || !reflect.DeepEqual(got, *v) {
				t.Errorf("%s: the delta makes %+v, want %+v (error: %v)", name, got, *v, err)
			}
		}
		if again, more := teller.Deltas(v); again != nil || more != nil {
			t.Errorf("%s: it is sent twice", name)
		}
	}
}

// TestVacancies checks that workers which wait for others are notified when processes speak for all slots, and not
// earlier.
func TestVacancies(t *testing.T) {
	vacant, settled := words.SlotView{Incarnation: 1}, words.SlotView{Incarnation: 1, Settled: true}
	v := &words.View{Revision: 1, Slots: []words.SlotView{vacant, vacant}}
	teller := newDeltaTracker(v)
	teller.ViewSent()
	var told []bool
	for i := range v.Slots {
		teller.Slot(i, &v.Slots[i], &settled, false)
		v.Slots[i] = settled
		v.Revision++
		_, workers := teller.Deltas(v)
		told = append(told, workers != nil)
	}
	if !slices.Equal(told, []bool{false, true}) {
		t.Errorf("workers are notified %v as slots are settled, want only of the last", told)
	}
}

// TestLeft checks that a slot's departure counts as unsent until it was sent, whatever happens to the slot in the
// meantime.
func TestLeft(t *testing.T) {
	there := words.SlotView{Incarnation: 1, Settled: true, Interval: words.Interval{Until: 3}}
	left, anew := there, words.SlotView{Incarnation: 2, Interval: words.Interval{From: 5}}
	left.Left = true
	v := &words.View{Revision: 1, Slots: []words.SlotView{there, there}}
	teller := newDeltaTracker(v)
	change := func(slot int, next words.SlotView) bool {
		teller.Slot(slot, &v.Slots[slot], &next, true)
		v.Slots[slot] = next
		return teller.Left()
	}
	untold := []bool{teller.Left(), change(0, left), change(1, words.SlotView{Incarnation: 2}), change(0, anew)}
	v.Revision++
	teller.Deltas(v)
	untold = append(untold, teller.Left(), change(0, words.SlotView{Incarnation: 3}))
	if want := []bool{false, true, true, true, false, false}; !slices.Equal(untold, want) {
		t.Errorf("a departure was not sent: %v, want %v", untold, want)
	}
}
