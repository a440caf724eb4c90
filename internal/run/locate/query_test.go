package locate_test

import (
	"reflect"
	"testing"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/supervisor"
	"github.com/perdure/perdure/internal/run/locate"
)

func TestProcessOf(t *testing.T) {
	s := &control.Status{Processes: []control.Process{
		{Role: "coordinator", PID: 1},
		{Role: "server", PID: 2},
		{Role: "server", Index: 1, PID: 3},
	}}
	for want, target := range map[int]supervisor.Target{
		1: {Role: wire.RoleCoordinator}, 2: {Role: wire.RoleServer}, 3: {Role: wire.RoleServer, Index: 1},
	} {
		if got := locate.ProcessOf(s, target); got.PID != want {
			t.Errorf("%s is process %d, want %d", target, got.PID, want)
		}
	}
	if got := locate.ProcessOf(
		s,
		supervisor.Target{Role: wire.RoleWorker},
	); !reflect.DeepEqual(got, control.Process{}) {
		t.Errorf("missing worker: %+v", got)
	}
	if _, _, err := locate.QueryState(t.Context(), control.NewClient("127.0.0.1:1", "", nil)); err == nil {
		t.Error("an address without a coordinator answers")
	}
}
