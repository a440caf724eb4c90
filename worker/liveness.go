package worker

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// All processes of a job may be gone, with none left to report it. A client that receives nothing from any of them
// pings every process it is connected to, and gives up after Config.LostAfter. A process that is busy, or waits for its
// disk or for other workers, still answers pings. An answer from one process is enough.

// watchLiveness ends the client when it has received nothing from any process of the job for too long.
func (c *Client) watchLiveness(ctx context.Context) {
	every := c.cfg.LostAfter / maxSilentChecks
	tick := time.NewTicker(max(every, 1))
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			if over := c.checkLiveness(now, every); over {
				c.cancel()
				return
			}
		}
	}
}

// checkLiveness checks whether a process has sent something since the last check. If none has, it pings all of them,
// and it ends the client after LostAfter.
func (c *Client) checkLiveness(now time.Time, every time.Duration) (over bool) {
	l := c.lock()
	defer c.mu.Unlock()
	if !l.session.welcomed {
		return false // Config.JoinTimeout limits the time to join
	}
	silent := c.liveness.Check(now, every)
	switch {
	case silent >= maxSilentChecks:
		l.fail(fmt.Errorf("%w: no message for %v from its coordinator at %s or any of its %d servers, "+
			"since %s; if the job has ended, resume it from its directory; otherwise check the network to them",
			perdure.ErrLost, c.cfg.LostAfter, c.cfg.Coordinator, l.servers.count(),
			c.liveness.Since().Format(time.DateTime)))
	case silent > 0 && silent%pingEvery == 0:
		echo := wire.Frame{Header: wire.Header{Kind: wire.KindEcho, Slot: l.slot, Shard: -1}}
		_ = l.session.send(echo) // the link reports a broken connection itself
		l.servers.postAll(echo)
	}
	return silent >= maxSilentChecks
}
