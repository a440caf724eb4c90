package coordinator

import (
	"errors"

	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
)

// hearing is what a connection's reader knows of the statuses that came on it. It is the
// reader's alone: statuses are decoded there, not in the loop.
type hearing struct {
	statuses uint64 // how many have come
	worker   words.WorkerStatus
}

// parseStatus reads a status, which must be the next one of its connection, as its
// number says.
func (h *hearing) parseStatus(f *wire.Frame, d any, number *uint64) error {
	if err := wire.ParseControl(f, d); err != nil {
		return err
	}
	if err := words.Follows(h.statuses, *number); err != nil {
		return err
	}
	h.statuses++
	return nil
}

var errOther = errors.New("its status does not fit what is known of it")

func (c *Coordinator) serverSays(m *member, d *words.ServerDelta) {
	if c.crew.current(m, wire.RoleServer) && !c.core.ServerSays(m.index, m.hello.Process, d) {
		c.door.Connections().Warn("closed a connection", "peer_role", m.hello.Role, "index", m.index, "err", errOther)
		m.conn.Close() // it comes again, and says all anew
	}
}

// workerSays takes a worker's status; an error is of one that no worker which keeps the rules
// would send.
func (c *Coordinator) workerSays(m *member, st words.WorkerStatus) error {
	if err := st.Validate(&c.core.Facts().Job, &c.core.Facts().View); err != nil ||
		!c.crew.current(m, wire.RoleWorker) {
		return err
	}
	c.core.WorkerStatus(m.index, m.hello.Process, st)
	return nil
}
