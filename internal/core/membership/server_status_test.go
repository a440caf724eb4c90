package membership

import (
	"github.com/perdure/perdure/internal/core/protocol"
)

// ServerStatus sends a server's whole status, as on a new connection.
func (c *Core) ServerStatus(index int, process string, st protocol.ServerStatus) {
	c.sendStatus(index, process, &protocol.ServerDeltaEncoder{}, &st, true)
}

// sendStatus sends the changes of a server's status on a connection.
func (c *Core) sendStatus(
	index int,
	process string,
	t *protocol.ServerDeltaEncoder,
	st *protocol.ServerStatus,
	counts bool,
) {
	for more := true; more; {
		var d protocol.ServerDelta
		d, more = t.Delta(st, c.record.View.End, counts)
		if !c.HandleServerDelta(index, process, &d) {
			panic("a server's status delta does not apply")
		}
	}
}
