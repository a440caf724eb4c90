package membership

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
)

// TestAdmit checks which processes are admitted, which must wait, and which changes make room for them.
func TestAdmit(t *testing.T) {
	for name, c := range map[string]struct {
		asks   joinRequest
		want   Admission
		change *Change
	}{
		"a free slot":                               {joinRequest{Worker: true, Index: 2}, Granted, nil},
		"its own index":                             {joinRequest{}, Granted, nil},
		"the index of a dead process":               {joinRequest{Other: true}, Granted, nil},
		"the index of a live process":               {joinRequest{Other: true, Taken: true}, Taken, nil},
		"no such index":                             {joinRequest{Index: 9, None: true}, Refused, nil},
		"any, but none is free":                     {joinRequest{Worker: true, Index: -1}, Taken, nil},
		"any server index, while some are in doubt": {joinRequest{Index: -1, Grows: true, Fixed: true}, Taken, nil},
		"one slot more": {
			joinRequest{Worker: true, Index: -1, Grows: true},
			Taken,
			&Change{Add: 1, Unmanaged: true},
		},
		"one slot more, but all would wait for it": {
			joinRequest{Worker: true, Index: -1, Grows: true, Fixed: true},
			NoFreeSlot,
			nil,
		},
		"a slot that left": {joinRequest{Worker: true, Index: 1, Departed: true}, SlotLeft, nil},
		"a slot that left a job that has ended": {
			joinRequest{Worker: true, Index: 1, Departed: true, Over: true},
			SlotLeft,
			nil,
		},
		"a slot that was suspended": {
			joinRequest{Worker: true, Index: 1, Departed: true, Suspended: true},
			Taken,
			&Change{Rejoin: []perdure.Slot{1}},
		},
		"a suspended slot of a job that has ended": {
			joinRequest{Worker: true, Index: 1, Departed: true, Suspended: true, Over: true},
			JobOver, nil,
		},
		"a job that is over": {joinRequest{Worker: true, Over: true}, JobOver, nil},
	} {
		if v, change := c.asks.Admit(); v != c.want || !reflect.DeepEqual(change, c.change) {
			t.Errorf("%s: admission %d, change %+v; want %d, %+v", name, v, change, c.want, c.change)
		}
	}
}
