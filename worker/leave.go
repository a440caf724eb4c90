package worker

import (
	"context"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// Leave notifies the coordinator that this process gives up its slot, so that another process takes the slot without
// delay. The caller must then call Close. The next process repeats the current clock. Leave fails if the connection to
// the coordinator is down; the coordinator then detects the end by a timeout.
func (c *Client) Leave() error {
	l := c.lock()
	defer c.mu.Unlock()
	if l.session.conn == nil || l.cfg.Observer {
		return transport.ErrClosed
	}
	l.flushHeld(everyShard)
	e := wire.Exited{Role: wire.RoleWorker, Index: int(l.slot), PID: l.cfg.PID, Vacated: true}
	if l.cfg.hooks.Died != nil && l.cfg.hooks.Died() {
		e.Vacated, e.How = false, "its program ended without leaving its slot"
	}
	return l.session.send(wire.Control(wire.KindExited, e))
}

// Share returns the number of slots that participate in the current clock (of), and how many of these precede this one
// (rank). Programs use it to divide data among the participating slots. The result depends only on the membership
// intervals of all slots, which are fixed when the clock starts.
func (c *Client) Share() (rank, of int) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.view.Rank(l.slot, l.out.Clock())
}

// Left reports whether this slot has left the job while this process held it, and the first clock in which it does not
// participate.
func (c *Client) Left() (at perdure.Clock, left bool) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.leftAt, l.leftAt > 0
}

// join waits until this process may act for its slot and knows the servers.
func (c *Client) join(ctx context.Context) error {
	l := c.lock()
	err := l.waits.Until(ctx, func() (bool, error) {
		known := l.session.welcomed && l.viewed && l.view.Shards[0].Server >= 0
		return known && int(l.slot) < len(l.view.Slots), nil
	})
	c.job, c.slot = l.job, l.slot
	logs, secret := l.traits.UsesLog() && !c.cfg.Observer, l.session.secret
	c.mu.Unlock()
	if err != nil || !logs {
		return err
	}
	return c.openLog(ctx, secret)
}
