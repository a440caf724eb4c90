package worker

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
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
	c.letAllGo()
	return c.coordinator.Send(wire.Control(wire.KindExited, wire.Exited{
		Role: wire.RoleWorker, Index: int(c.slot), PID: c.cfg.PID, How: "it left",
	}))
}

// Share returns how many slots take part in the present clock, and how many of them
// come before this one: data that is shared out so is shared out among those who are
// there. It is a pure function of the job's spans (perdure.View.Share), which are known
// when the clock begins.
func (c *Client) Share() (rank, of int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.view.Share(c.slot, c.out.Clock())
}

// Left returns whether this slot has left the job, and the clock from which it did not
// take part.
func (c *Client) Left() (at perdure.Clock, left bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slot < 0 || int(c.slot) >= len(c.view.Slots) {
		return 0, false
	}
	s := &c.view.Slots[c.slot]
	return s.Until, s.Left
}

// join waits until this process may speak for its slot, and knows whom to speak to.
func (c *Client) join(ctx context.Context) error {
	c.mu.Lock()
	err := c.wait(ctx, func() (bool, error) {
		return c.welcomed && c.viewed && c.view.Shards[0].Server >= 0 && int(c.slot) < len(c.view.Slots), nil
	})
	c.mu.Unlock()
	if err != nil {
		return err
	}
	return c.openLog(ctx)
}
