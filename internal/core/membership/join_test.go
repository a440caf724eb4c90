package membership

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
)

// Who is let in, who waits, and what makes room for whom.
func TestAdmit(t *testing.T) {
	for name, c := range map[string]struct {
		asks   asks
		want   Admission
		change *Change
	}{
		"a place that is free":            {asks{kind: Worker, index: 2}, Granted, nil},
		"a place of its own":              {asks{kind: Server}, Granted, nil},
		"another's, who is dead":          {asks{kind: Server, other: true}, Granted, nil},
		"another's, who lives":            {asks{kind: Server, other: true, taken: true}, Taken, nil},
		"no such place":                   {asks{kind: Server, index: 9, none: true}, Refused, nil},
		"any, and none is free":           {asks{kind: Worker, index: -1}, Taken, nil},
		"any server, which is to be seen": {asks{kind: Server, index: -1, grows: true, fixed: true}, Taken, nil},
		"one slot more": {
			asks{kind: Worker, index: -1, grows: true},
			Taken,
			&Change{Add: 1, Guest: true},
		},
		"one slot more, for which all wait": {asks{kind: Worker, index: -1, grows: true, fixed: true}, Fixed, nil},
		"a slot that has left":              {asks{kind: Worker, index: 1, departed: true}, Departed, nil},
		"a slot that has left a job that ends": {
			asks{kind: Worker, index: 1, departed: true, over: true},
			Departed,
			nil,
		},
		"a slot that was suspended": {
			asks{kind: Worker, index: 1, departed: true, again: true}, Taken, &Change{Again: []perdure.Slot{1}},
		},
		"a suspended slot of a job that ends": {
			asks{kind: Worker, index: 1, departed: true, again: true, over: true},
			Over, nil,
		},
		"a job that is over": {asks{kind: Worker, over: true}, Over, nil},
	} {
		if v, change := c.asks.admit(); v != c.want || !reflect.DeepEqual(change, c.change) {
			t.Errorf("%s: admission %d, change %+v; want %d, %+v", name, v, change, c.want, c.change)
		}
	}
}
