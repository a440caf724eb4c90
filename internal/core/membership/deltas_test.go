package membership

import (
	"reflect"
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
)

// TestWhoHears checks which changes are sent to whom: servers receive all, workers those that they act on.
func TestWhoHears(t *testing.T) {
	settled := protocol.SlotView{Incarnation: 1, Decided: true, Settled: true}
	head := protocol.Holder{Server: 0, Incarnation: 1}
	for name, c := range map[string]struct {
		change  func(v *protocol.View, t *deltaTracker)
		servers bool
		workers bool
	}{
		"nothing":        {func(*protocol.View, *deltaTracker) {}, false, false},
		"a cut is named": {func(v *protocol.View, _ *deltaTracker) { v.Named = 7 }, true, true},
		"another head": {func(v *protocol.View, t *deltaTracker) {
			next := protocol.ShardView{Holder: protocol.Holder{Server: 1, Incarnation: 1}, Epoch: 2}
			t.Shard(0, &v.Shards[0], &next)
			v.Shards[0] = next
		}, true, true},
		"a server starts to copy": {func(v *protocol.View, t *deltaTracker) {
			next := v.Shards[0]
			next.Joining = &protocol.Holder{Server: 1, Incarnation: 1}
			t.Shard(0, &v.Shards[0], &next)
			v.Shards[0] = next
		}, true, false},
		"a worker died": {func(v *protocol.View, t *deltaTracker) {
			t.Slot(0, &v.Slots[0], &protocol.SlotView{Incarnation: 2}, false)
			v.Slots[0] = protocol.SlotView{Incarnation: 2}
		}, true, false},
		"a slot has left": {func(v *protocol.View, t *deltaTracker) {
			next := v.Slots[0]
			next.Left = true
			t.Slot(0, &v.Slots[0], &next, false)
			v.Slots[0] = next
		}, true, true},
		"a table": {func(v *protocol.View, t *deltaTracker) {
			v.Tables = append(v.Tables, perdure.TableSpec{Name: "w"})
			t.Tables()
		}, true, true},
	} {
		v := &protocol.View{
			Revision: 4, Shards: []protocol.ShardView{{Holder: head, Epoch: 1}},
			Slots: []protocol.SlotView{settled, settled},
		}
		before := v.Clone()
		encoder := newDeltaTracker(v)
		c.change(v, &encoder)
		v.Revision++
		servers, workers := encoder.Deltas(v)
		if (servers != nil) != c.servers || (workers != nil) != c.workers {
			t.Errorf("%s: servers receive %+v, workers %+v", name, servers, workers)
		}
		for _, d := range []*protocol.ViewDelta{servers, workers} {
			if d == nil {
				continue
			}
			if got, err := d.Apply(&before); err != nil || !reflect.DeepEqual(got, *v) {
				t.Errorf("%s: the delta makes %+v, want %+v (error: %v)", name, got, *v, err)
			}
		}
		if again, more := encoder.Deltas(v); again != nil || more != nil {
			t.Errorf("%s: it is sent twice", name)
		}
	}
}

// TestVacancies checks that workers which wait for others are notified when processes speak for all slots, and not
// earlier.
func TestVacancies(t *testing.T) {
	vacant, settled := protocol.SlotView{Incarnation: 1}, protocol.SlotView{Incarnation: 1, Settled: true}
	v := &protocol.View{Revision: 1, Slots: []protocol.SlotView{vacant, vacant}}
	encoder := newDeltaTracker(v)
	encoder.ViewSent()
	var sent []bool
	for i := range v.Slots {
		encoder.Slot(i, &v.Slots[i], &settled, false)
		v.Slots[i] = settled
		v.Revision++
		_, workers := encoder.Deltas(v)
		sent = append(sent, workers != nil)
	}
	if !slices.Equal(sent, []bool{false, true}) {
		t.Errorf("workers are notified %v as slots are settled, want only of the last", sent)
	}
}

// TestLeft checks that a slot's departure counts as unsent until it was sent, whatever happens to the slot in the
// meantime.
func TestLeft(t *testing.T) {
	there := protocol.SlotView{Incarnation: 1, Settled: true, Interval: protocol.Interval{Until: 3}}
	left, anew := there, protocol.SlotView{Incarnation: 2, Interval: protocol.Interval{From: 5}}
	left.Left = true
	v := &protocol.View{Revision: 1, Slots: []protocol.SlotView{there, there}}
	encoder := newDeltaTracker(v)
	change := func(slot int, next protocol.SlotView) bool {
		encoder.Slot(slot, &v.Slots[slot], &next, true)
		v.Slots[slot] = next
		return encoder.Left()
	}
	unsent := []bool{encoder.Left(), change(0, left), change(1, protocol.SlotView{Incarnation: 2}), change(0, anew)}
	v.Revision++
	encoder.Deltas(v)
	unsent = append(unsent, encoder.Left(), change(0, protocol.SlotView{Incarnation: 3}))
	if want := []bool{false, true, true, true, false, false}; !slices.Equal(unsent, want) {
		t.Errorf("a departure was not sent: %v, want %v", unsent, want)
	}
}
