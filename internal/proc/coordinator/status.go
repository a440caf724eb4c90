package coordinator

import (
	"errors"

	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/data/wire"
)

// statusReader tracks the statuses received on one connection. Only the receiving goroutine uses it: statuses are
// decoded there and not in the loop.
type statusReader struct {
	statuses uint64 // number of statuses received
	worker   protocol.WorkerStatus
}

// parseStatus decodes a status and checks that its number is the next one of the connection.
func (h *statusReader) parseStatus(f *wire.Frame, d any, number *uint64) error {
	if err := wire.ParseControl(f, d); err != nil {
		return err
	}
	if err := protocol.CheckSequence(h.statuses, *number); err != nil {
		return err
	}
	h.statuses++
	return nil
}

var errStatusGap = errors.New("its status report does not follow the previous one")

func (c *Coordinator) serverStatus(m *member, d *protocol.ServerDelta) {
	if c.members.current(m, wire.RoleServer) && !c.core.HandleServerDelta(m.index, m.hello.Process, d) {
		c.admission.Connections().Warn("closed a connection", "peer_role", m.hello.Role, "index", m.index, "err",
			errStatusGap)
		m.conn.Close() // the server reconnects and sends a complete status
	}
}

// workerStatus records a worker's status. It returns an error if no correct worker would send it.
func (c *Coordinator) workerStatus(m *member, st protocol.WorkerStatus) error {
	if err := st.Validate(&c.core.Record().Job, &c.core.Record().View); err != nil ||
		!c.members.current(m, wire.RoleWorker) {
		return err
	}
	c.core.HandleWorkerStatus(m.index, m.hello.Process, st)
	return nil
}
