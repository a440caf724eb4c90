package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// A job's processes may all be gone, and none is left to say so. A client that hears none of
// them asks all that it has a connection to whether they are there, and gives up after
// Config.LostAfter. A process that is busy, waits for its disk or for other workers answers
// all the same. To hear one is enough.

// listen ends the client when no process of the job has been heard for too long.
func (c *Client) listen(ctx context.Context) {
	every := c.cfg.LostAfter / silentTicks
	tick := time.NewTicker(max(every, 1))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if over := c.lookAround(now, every); over {
				c.cancel()
				return
			}
		}
	}
}

// lookAround looks whether somebody has been heard, asks all for a sign of life where not, and
// ends the client when it has been for too long.
func (c *Client) lookAround(now time.Time, every time.Duration) (over bool) {
	l := c.lock()
	defer c.mu.Unlock()
	if !l.session.welcomed {
		return false // Config.Patience says how long to look for the job
	}
	silent := c.heard.Look(now, every)
	switch {
	case silent >= silentTicks:
		l.fail(fmt.Errorf("%w: for %v neither its coordinator at %s nor any of its %d servers has been heard, "+
			"since %s; if it has ended, go on from its folder, and else look at the network to them",
			perdure.ErrLost, c.cfg.LostAfter, c.cfg.Coordinator, l.servers.count(),
			c.heard.Since().Format(time.DateTime)))
	case silent > 0 && silent%asksEvery == 0:
		echo := wire.Frame{Header: wire.Header{Kind: wire.KindEcho, Slot: l.slot, Shard: -1}}
		_ = l.session.tell(echo) // a broken link says it itself
		l.servers.postAll(echo)
	}
	return silent >= silentTicks
}
