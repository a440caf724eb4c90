package admission

import (
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure/internal/data/wire"
)

// The roles that may send each kind of message. Receivers check the contents separately. The tables are documented in
// docs/design/security.md.

// table lists the roles that may send each kind of message. No role may send a kind that is missing.
type table [math.MaxUint8 + 1][]wire.Role

var (
	servers     = []wire.Role{wire.RoleServer}
	workers     = []wire.Role{wire.RoleWorker}
	supervisors = []wire.Role{wire.RoleSupervisor}
	clients     = []wire.Role{wire.RoleWorker, wire.RoleObserver}
	changers    = []wire.Role{wire.RoleWorker, wire.RoleServer} // a server sends these as entries of a shard's log
)

var toCoordinator = table{
	wire.KindStatus:       servers,
	wire.KindWorkerStatus: workers,
	wire.KindTable:        workers,
	wire.KindReport:       workers,
	// A worker reports itself when it leaves. An observer reports the processes of its host.
	wire.KindExited: {wire.RoleSupervisor, wire.RoleWorker, wire.RoleObserver},
	wire.KindOrder:  supervisors,
	wire.KindEcho:   clients,
}

var toServer = table{
	wire.KindOpen: clients,
	wire.KindGet:  clients,
	wire.KindScan: clients,
	wire.KindEcho: clients,

	wire.KindUpdate: changers,
	wire.KindTick:   changers,

	wire.KindLoad: workers,
	wire.KindSync: workers,
	wire.KindDrop: workers,
	wire.KindSaw:  workers,

	wire.KindFollow:   servers,
	wire.KindSnapshot: servers,
	wire.KindLevel:    servers,
	wire.KindFence:    servers,
	wire.KindDecide:   servers,
	wire.KindEnd:      servers,
	wire.KindAddTable: servers,
	wire.KindBase:     servers,
	wire.KindPassCut:  servers,
	wire.KindRoster:   servers,
	wire.KindCut:      servers,
}

// ToCoordinator returns an error if the role may not send messages of this kind to a coordinator.
func ToCoordinator(role wire.Role, kind wire.Kind) error {
	return toCoordinator.check(role, kind, wire.RoleCoordinator)
}

// ToServer returns an error if the role may not send messages of this kind to a server.
func ToServer(role wire.Role, kind wire.Kind) error {
	return toServer.check(role, kind, wire.RoleServer)
}

func (t *table) check(role wire.Role, kind wire.Kind, to wire.Role) error {
	if slices.Contains(t[kind], role) {
		return nil
	}
	return fmt.Errorf("no %s may send a frame of kind %d to a %s", role, kind, to)
}
