package worker

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

// A job's processes may all be gone, and none is left to say so. A client that hears none of
// them asks all that it has a connection to whether they are there, and gives up after
// Config.LostAfter. A process that is busy, waits for its disk or for other workers answers
// all the same. To hear one is enough.

// silentTicks is how many times in Config.LostAfter a client looks whether somebody was
// heard. asksEvery is after how many of them in silence it asks, and asks again.
const (
	silentTicks = 12
	asksEvery   = 3
)

// hearing counts the time in which a client listened and heard nobody. It counts its own
// looks and not the clock: what comes while a process is frozen it reads when it thaws.
type hearing struct {
	heard  atomic.Bool // since the last look
	silent int         // looks since somebody was heard
	since  time.Time   // of the last look at which somebody had been
	looked time.Time   // of the last look
}

// note notes that a process of the job was heard.
func (h *hearing) note() {
	if !h.heard.Load() { // it is so nearly always: the line of memory is not taken from others
		h.heard.Store(true)
	}
}

// look counts a look, which is one every so often, and returns for how many nobody has
// been heard. One that comes late says nothing: this process did not run, or not enough.
func (h *hearing) look(now time.Time, every time.Duration) (silent int) {
	late := !h.looked.IsZero() && now.Sub(h.looked) > 2*every
	h.looked = now
	switch {
	case h.heard.Swap(false) || h.since.IsZero():
		h.silent, h.since = 0, now
	case !late:
		h.silent++
	}
	return h.silent
}

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
	silent := c.heard.look(now, every)
	switch {
	case silent >= silentTicks:
		l.fail(fmt.Errorf("%w: for %v neither its coordinator at %s nor any of its %d servers has been heard, "+
			"since %s; if it has ended, go on from its folder", perdure.ErrLost, c.cfg.LostAfter,
			c.cfg.Coordinator, l.servers.count(), c.heard.since.Format(time.DateTime)))
	case silent > 0 && silent%asksEvery == 0:
		echo := wire.Frame{Header: wire.Header{Kind: wire.KindEcho, Slot: l.slot, Shard: -1}}
		_ = l.session.tell(echo) // a broken link says it itself
		l.servers.postAll(echo)
	}
	return silent >= silentTicks
}
