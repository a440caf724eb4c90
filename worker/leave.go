package worker

import (
	"github.com/perdure/perdure/transport"
	"github.com/perdure/perdure/wire"
)

// Leave tells the coordinator that this process gives its slot up, so that another
// takes it without delay; Close must follow. What the process has sent of the
// clock that it is at is done again by the next one. transport.ErrClosed where
// there is no connection to the coordinator now: it will notice by the silence.
func (c *Client) Leave() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.coordinator == nil || c.cfg.Observer {
		return transport.ErrClosed
	}
	return c.coordinator.Send(wire.Control(wire.KindExited, wire.Exited{
		Role: wire.RoleWorker, Index: int(c.slot), PID: c.cfg.PID, How: "it left",
	}))
}
