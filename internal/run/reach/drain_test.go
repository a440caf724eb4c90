package reach

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
)

// TestLeft: who is to end is left until others have all that it held, or its slot is free. A server that is gone before
// is lost, also where another process has its place.
func TestLeft(t *testing.T) {
	ends := &control.Draining{Places: []control.DrainedPlace{
		{Role: "server", Index: 0, Incarnation: 2}, {Role: "worker", Index: 1, Incarnation: 3},
	}}
	server := func(state control.ProcessState, incarnation, drained perdure.Incarnation) control.Process {
		return control.Process{
			Role: "server", State: state, Incarnation: incarnation, Drained: drained, Shards: 3, Bytes: 2e6,
		}
	}
	worker := func(state control.ProcessState, incarnation perdure.Incarnation) control.Process {
		return control.Process{Role: "worker", Index: 1, State: state, Incarnation: incarnation}
	}
	gone := worker(control.ProcessStarting, 4)
	for name, c := range map[string]struct {
		server, worker control.Process
		want           Remains
	}{
		"both work": {
			server(control.ProcessLive, 2, 1), worker(control.ProcessLive, 3),
			Remains{Servers: []string{"server:0"}, Shards: 3, Bytes: 2e6, Workers: []string{"worker:1"}},
		},
		"the worker has left": {
			server(control.ProcessSuspect, 2, 0), gone,
			Remains{Servers: []string{"server:0"}, Shards: 3, Bytes: 2e6},
		},
		"another worker has come":    {server(control.ProcessDead, 2, 2), worker(control.ProcessLive, 4), Remains{}},
		"others have all":            {server(control.ProcessLive, 2, 2), gone, Remains{}},
		"another server has come":    {server(control.ProcessLive, 3, 2), gone, Remains{}},
		"it has died":                {server(control.ProcessDead, 2, 1), gone, Remains{Lost: []string{"server:0"}}},
		"it has died, another comes": {server(control.ProcessLive, 3, 1), gone, Remains{Lost: []string{"server:0"}}},
	} {
		got := Left(&control.Status{Processes: []control.Process{c.server, c.worker}}, ends)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}
