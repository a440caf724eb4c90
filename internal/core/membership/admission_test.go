package membership

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
)

// Who is let in, who waits, and what makes room for whom.
func TestAdmit(t *testing.T) {
	for name, c := range map[string]struct {
		asks   joinRequest
		want   Admission
		change *Change
	}{
		"a place that is free":            {joinRequest{Worker: true, Index: 2}, Granted, nil},
		"a place of its own":              {joinRequest{}, Granted, nil},
		"another's, who is dead":          {joinRequest{Other: true}, Granted, nil},
		"another's, who lives":            {joinRequest{Other: true, Taken: true}, Taken, nil},
		"no such place":                   {joinRequest{Index: 9, None: true}, Refused, nil},
		"any, and none is free":           {joinRequest{Worker: true, Index: -1}, Taken, nil},
		"any server, which is to be seen": {joinRequest{Index: -1, Grows: true, Fixed: true}, Taken, nil},
		"one slot more": {
			joinRequest{Worker: true, Index: -1, Grows: true},
			Taken,
			&Change{Add: 1, Guest: true},
		},
		"one slot more, for which all wait": {
			joinRequest{Worker: true, Index: -1, Grows: true, Fixed: true},
			Fixed,
			nil,
		},
		"a slot that has left": {joinRequest{Worker: true, Index: 1, Departed: true}, Departed, nil},
		"a slot that has left a job that ends": {
			joinRequest{Worker: true, Index: 1, Departed: true, Over: true},
			Departed,
			nil,
		},
		"a slot that was suspended": {
			joinRequest{Worker: true, Index: 1, Departed: true, Again: true}, Taken, &Change{Again: []perdure.Slot{1}},
		},
		"a suspended slot of a job that ends": {
			joinRequest{Worker: true, Index: 1, Departed: true, Again: true, Over: true},
			Over, nil,
		},
		"a job that is over": {joinRequest{Worker: true, Over: true}, Over, nil},
	} {
		if v, change := c.asks.Admit(); v != c.want || !reflect.DeepEqual(change, c.change) {
			t.Errorf("%s: admission %d, change %+v; want %d, %+v", name, v, change, c.want, c.change)
		}
	}
}
