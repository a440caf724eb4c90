package coordinator

import (
	"fmt"
	"slices"

	"github.com/perdure/perdure/internal/data/wire"
)

// speakers says which roles may send the coordinator a kind of frame. No other kind may be
// sent.
var speakers = map[wire.Kind][]wire.Role{
	wire.KindStatus:       {wire.RoleServer},
	wire.KindWorkerStatus: {wire.RoleWorker},
	wire.KindTable:        {wire.RoleWorker},
	wire.KindReport:       {wire.RoleWorker},
	// a worker of itself: it leaves; an observer of its processes: it is a host
	wire.KindExited: {wire.RoleSupervisor, wire.RoleWorker, wire.RoleObserver},
	wire.KindOrder:  {wire.RoleSupervisor},
}

// maySpeak refuses a frame of a kind that its sender's role may not send.
func maySpeak(role wire.Role, kind wire.Kind) error {
	if slices.Contains(speakers[kind], role) {
		return nil
	}
	return fmt.Errorf("a %s may not send a frame of kind %d to the coordinator", role, kind)
}
