package locate

import (
	"context"
	"reflect"
	"testing"
	"testing/synctest"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/proc/control"
)

// TestLeft checks that a draining process remains until other servers have all its replicas or its slot is free. A
// server that ends before that is lost, even if another process has replaced it.
func TestLeft(t *testing.T) {
	ends := &control.DrainResult{Places: []control.DrainedProcess{
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
		want           Remaining
	}{
		"both work": {
			server(control.ProcessLive, 2, 1), worker(control.ProcessLive, 3),
			Remaining{Servers: []string{"server:0"}, Shards: 3, Bytes: 2e6, Workers: []string{"worker:1"}},
		},
		"the worker has left": {
			server(control.ProcessSuspect, 2, 0), gone,
			Remaining{Servers: []string{"server:0"}, Shards: 3, Bytes: 2e6},
		},
		"another worker has come":    {server(control.ProcessDead, 2, 2), worker(control.ProcessLive, 4), Remaining{}},
		"others have all":            {server(control.ProcessLive, 2, 2), gone, Remaining{}},
		"another server has come":    {server(control.ProcessLive, 3, 2), gone, Remaining{}},
		"it has died":                {server(control.ProcessDead, 2, 1), gone, Remaining{Lost: []string{"server:0"}}},
		"it has died, another comes": {server(control.ProcessLive, 3, 1), gone, Remaining{Lost: []string{"server:0"}}},
	} {
		got := RemainingDrain(&control.Status{Processes: []control.Process{c.server, c.worker}}, ends)
		if !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: %+v, want %+v", name, got, c.want)
		}
	}
}

// says is a job with a list of successive statuses.
type says struct {
	control.Backend
	next []control.Status // the last one repeats
}

func (s *says) Status(context.Context) (now control.Status, err error) {
	if now = s.next[0]; len(s.next) > 1 {
		s.next = s.next[1:]
	}
	return now, nil
}

// TestDrainAway checks that a coordinator's statuses while its registry is unavailable decide nothing about a drain,
// however long that lasts.
func TestDrainAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ends := &control.DrainResult{Places: []control.DrainedProcess{{Role: "server", Incarnation: 2}}}
		status := func(
			state control.ProcessState, drained perdure.Incarnation, a *control.RegistryWait,
		) control.Status {
			p := control.Process{Role: "server", State: state, Incarnation: 2, Drained: drained}
			return control.Status{Processes: []control.Process{p}, RegistryAway: a}
		}
		job := &says{next: []control.Status{status(control.ProcessLive, 0, nil)}}
		for range 1000 {
			job.next = append(job.next, status(control.ProcessDead, 0, &control.RegistryWait{Seconds: 1}))
		}
		job.next = append(job.next, status(control.ProcessDead, 2, nil))
		began := time.Now()
		err := AwaitDrained(t.Context(), job, ends, 0, func(*Remaining) {})
		if took := time.Since(began); err != nil || took < 1000*drainPollInterval {
			t.Errorf("after %v: %v", took, err)
		}
	})
}
