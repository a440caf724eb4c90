package worker

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Leave tells the coordinator that this process gives its slot up, so that another takes it
// without delay. Close must follow. The next process repeats the clock that this one is at. Leave fails
// where the connection to the coordinator is down; the coordinator then detects the end by a timeout.
func (c *Client) Leave() error {
	l := c.lock()
	defer c.mu.Unlock()
	if l.session.conn == nil || l.cfg.Observer {
		return transport.ErrClosed
	}
	l.letGo(everyShard)
	return l.session.tell(wire.Control(wire.KindExited, wire.Exited{
		Role: wire.RoleWorker, Index: int(l.slot), PID: l.cfg.PID, How: "it left",
	}))
}

// Share returns how many slots take part in the present clock (of), and how many of these come
// before this one (rank): data is to be shared out among the slots that are there. It is a
// pure function of the membership intervals of all slots, which are known when the clock begins.
func (c *Client) Share() (rank, of int) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.view.Share(l.slot, l.out.Clock())
}

// Left returns whether this slot has left the job while this process had it, and the clock from which on it does not
// take part.
func (c *Client) Left() (at perdure.Clock, left bool) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.leftAt, l.leftAt > 0
}

// join waits until this process may speak for its slot, and knows the servers.
func (c *Client) join(ctx context.Context) error {
	l := c.lock()
	err := l.waits.Until(ctx, func() (bool, error) {
		known := l.session.welcomed && l.viewed && l.view.Shards[0].Server >= 0
		return known && int(l.slot) < len(l.view.Slots), nil
	})
	c.job, c.slot = l.job, l.slot
	logs, secret := l.traits.Logged() && !c.cfg.Observer, l.session.secret
	c.mu.Unlock()
	if err != nil || !logs {
		return err
	}
	return c.openLog(ctx, secret)
}
