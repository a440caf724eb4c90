package replica

import (
	"slices"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// TestProposesHolds checks which entries the head appends for holds and cuts by slot.
func TestProposesHolds(t *testing.T) {
	var p proposals
	entry := func(kind wire.Kind, clock perdure.Clock) ControlEntry {
		return ControlEntry{Kind: kind, Slot: perdure.NoSlot, Clock: clock}
	}
	cut := entry(wire.KindCut, 5)
	cut.Payload = []byte("[4,6]")
	for _, c := range []struct {
		what string
		view protocol.View
		want []ControlEntry
	}{
		{"nothing", protocol.View{}, nil},
		{"a hold starts", protocol.View{Hold: 3}, []ControlEntry{entry(wire.KindHold, 3)}},
		{"it lasts", protocol.View{Hold: 3}, nil},
		{"it is given up", protocol.View{}, []ControlEntry{entry(wire.KindHold, 0)}},
		{"another starts", protocol.View{Hold: 7}, []ControlEntry{entry(wire.KindHold, 7)}},
		{"a cut ends it", protocol.View{Named: 5, NamedClocks: protocol.SlotClocks{4, 6}}, []ControlEntry{cut}},
		{"the cut is known", protocol.View{Named: 5, NamedClocks: protocol.SlotClocks{4, 6}}, nil},
	} {
		var fx Effects
		p.serving(&c.view, &fx)
		same := func(a, b ControlEntry) bool {
			return a.Kind == b.Kind && a.Slot == b.Slot && a.Clock == b.Clock && string(a.Payload) == string(b.Payload)
		}
		if !slices.EqualFunc(fx.ControlEntries, c.want, same) {
			t.Errorf("%s: the head appends %+v, want %+v", c.what, fx.ControlEntries, c.want)
		}
	}
}

// TestHoldExpires checks that a head ends a hold by itself if it lasts too long, once, although the view still has it.
func TestHoldExpires(t *testing.T) {
	var p proposals
	v, ended := protocol.View{Hold: 3}, 0
	for n := range 3 * maxHoldTicks {
		hold := uint64(3)
		if ended > 0 {
			hold = 0
		}
		var fx Effects
		p.tick(hold)
		p.serving(&v, &fx)
		for _, e := range fx.ControlEntries {
			if e.Kind == wire.KindHold && e.Clock == 0 {
				if ended++; n+1 != maxHoldTicks {
					t.Errorf("the hold ended after %d ticks", n+1)
				}
			}
		}
	}
	if ended != 1 {
		t.Errorf("the hold ended %d times", ended)
	}
}
