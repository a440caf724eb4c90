package wire

import (
	"fmt"
	"math"
	"slices"
)

// The roles that may send each kind of message. Receivers check the contents separately. The tables are documented in
// docs/design/security.md.

// rights lists the roles that may send each kind of message. No role may send a kind that is missing.
type rights [math.MaxUint8 + 1][]Role

var (
	servers     = []Role{RoleServer}
	workers     = []Role{RoleWorker}
	supervisors = []Role{RoleSupervisor}
	clients     = []Role{RoleWorker, RoleObserver}
	changers    = []Role{RoleWorker, RoleServer} // a server sends these as entries of a shard's log
)

var toCoordinator = rights{
	KindStatus:       servers,
	KindWorkerStatus: workers,
	KindTable:        workers,
	KindReport:       workers,
	// A worker reports itself when it leaves. An observer reports the processes of its host.
	KindExited: {RoleSupervisor, RoleWorker, RoleObserver},
	KindOrder:  supervisors,
	KindEcho:   clients,
}

var toServer = rights{
	KindOpen: clients,
	KindGet:  clients,
	KindScan: clients,
	KindEcho: clients,

	KindUpdate: changers,
	KindTick:   changers,

	KindLoad:        workers,
	KindSync:        workers,
	KindUnsubscribe: workers,
	KindSeen:        workers,

	KindFollow:     servers,
	KindSnapshot:   servers,
	KindCaughtUp:   servers,
	KindFence:      servers,
	KindDecide:     servers,
	KindEnd:        servers,
	KindAddTable:   servers,
	KindBase:       servers,
	KindPassCut:    servers,
	KindMembership: servers,
	KindCut:        servers,
	KindHold:       servers,
}

// CheckToCoordinator returns an error if the role may not send messages of this kind to a coordinator.
func CheckToCoordinator(role Role, kind Kind) error {
	return toCoordinator.check(role, kind, RoleCoordinator)
}

// CheckToServer returns an error if the role may not send messages of this kind to a server.
func CheckToServer(role Role, kind Kind) error {
	return toServer.check(role, kind, RoleServer)
}

func (t *rights) check(role Role, kind Kind, to Role) error {
	if slices.Contains(t[kind], role) {
		return nil
	}
	return fmt.Errorf("no %s may send a frame of kind %d to a %s", role, kind, to)
}
