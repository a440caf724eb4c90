package worker

import (
	"cmp"
	"context"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/consistency"
	"github.com/perdure/perdure/wire"
)

const (
	defaultOutAfter = 200 * time.Millisecond
	// slowest is how many bytes of updates a server is expected to apply in a second at
	// least: one that has more to do is not out because it takes longer.
	slowest = 32 << 20
	// updateCost is what an update that is queued takes beside its bytes, about.
	updateCost = 512
)

// outages is what a client knows of the shards that are out, where it is to go on
// without them.
type outages struct {
	shards int       // so many are out now
	begin  time.Time // since when some are, or were last
	end    time.Time // until when; of use while none is
}

// outage is one shard's part of it.
type outage struct {
	out    bool
	quiet  time.Time     // since when the shard owes an answer; zero: it owes none
	stuck  bool          // some who wait for the shard have not been told that it is out
	hidden bool          // own updates do not show in its cached rows
	since  perdure.Clock // likewise: those of this clock and later ones
}

// continues reports whether this client goes on while a shard is out.
func (c *Client) continues() bool { return c.job.OnOutage.Continue && c.slot >= 0 }

// watch looks which shards are out, while the client lives.
func (c *Client) watch(ctx context.Context) {
	tick := time.NewTicker(c.cfg.OutAfter / 4)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			c.mu.Lock()
			for _, sh := range c.shards {
				c.observe(sh, now)
			}
			c.mu.Unlock()
		}
	}
}

// observe decides whether a shard is out: it has owed an answer for Config.OutAfter,
// and as much longer as it may take to apply what it was sent. It needs c.mu.
func (c *Client) observe(sh *shardLink, now time.Time) {
	patience := c.cfg.OutAfter
	if sh.open && sh.headOpen {
		patience += time.Duration(float64(sh.keptBytes+sh.shownBytes) / slowest * float64(time.Second))
	}
	switch {
	case sh.out && sh.stuck:
		c.release(sh)
	case !c.owes(sh):
		c.answers(sh)
	case sh.quiet.IsZero():
		sh.quiet = now
	case !sh.out && now.Sub(sh.quiet) >= patience:
		c.isOut(sh)
	}
}

// owes reports whether a shard should have answered: it is not open, or it has an
// update that nothing holds back and that is not applied. One of a clock from the next
// cut on is held back until all slots have come there. It needs c.mu.
func (c *Client) owes(sh *shardLink) bool {
	if !sh.open || !sh.headOpen {
		return true
	}
	for _, u := range sh.kept {
		if u.clock < sh.counts.Applied {
			continue
		}
		cut := c.job.Recovery.NextCut(sh.minClock - 1)
		if named := c.view.Named; named > 0 && named >= sh.minClock && (cut < 0 || named < cut) {
			cut = named
		}
		return !u.open && !u.held && (cut < 0 || u.clock < cut)
	}
	return false
}

// answers notes that a shard has shown that it is there, or that nothing shows that
// it is not. It needs c.mu.
func (c *Client) answers(sh *shardLink) {
	sh.quiet = time.Time{}
	if !sh.out {
		return
	}
	sh.out, sh.stuck = false, false
	if c.outages.shards--; c.outages.shards == 0 {
		c.outages.end = time.Now()
	}
	if sh.hidden { // what is read from now on has own updates in it again
		sh.hidden = false
		for _, t := range c.tables {
			if t != nil {
				t.parts[sh.id].cache.forget()
			}
		}
	}
	c.cfg.Log.Info("a shard is back", "shard", sh.id, "queued", len(sh.kept))
	c.broadcast()
}

// isOut needs c.mu.
func (c *Client) isOut(sh *shardLink) {
	sh.out = true
	if c.outages.shards++; c.outages.shards == 1 {
		c.outages.begin = time.Now()
	}
	c.cfg.Log.Warn("a shard is out; going on without it", "shard", sh.id)
	c.release(sh)
	c.broadcast()
}

// release lets those who wait for a shard's rows look again: what they may read
// while it is out they find in the cache. It needs c.mu.
func (c *Client) release(sh *shardLink) {
	sh.stuck = false
	for _, g := range c.gets {
		if g.shard != sh.id || len(g.batches) == 0 || g.kind != wire.KindGet && g.kind != wire.KindPush {
			continue
		}
		if p := g.placer; p != nil { // the rest of an answer may never come
			sh.stuck = true
			go p.conn.Close()
			continue
		}
		for _, b := range g.batches {
			b.left--
			b.again = true
		}
		g.batches = g.batches[:0]
		c.dropGet(g)
	}
	c.broadcast()
}

// serves reports whether the cached row at a place may be read at a clock, and
// whether that is only so because its shard is out.
func (t *Table) serves(p *part, at int, clock perdure.Clock) (ok, stale bool) {
	if t.mayAnswer(p, at, clock) {
		return true, false
	}
	c := t.c
	if r := p.cache.reading(at); c.shards[p.shard].out && r.known() {
		row := consistency.Cached{MinClock: r.minClock, FetchedAt: r.fetchedAt}
		ok = consistency.MayRelax(t.spec.Consistency, row, clock, c.job.OnOutage.Clocks)
	}
	return ok, ok
}

// shows reports whether own updates show in a shard's cached rows, and notes it if
// they do not.
func (c *Client) shows(sh *shardLink) bool {
	if sh.out && c.job.OutageRows != perdure.RowsApply {
		if !sh.hidden {
			sh.hidden, sh.since = true, c.clock
		}
	}
	return !sh.hidden
}

// keep counts n more bytes of updates that are kept for a shard.
func (c *Client) keep(sh *shardLink, n int64) {
	c.keptBytes += n
	sh.keptBytes += n
}

// reads notes what is read, and the present clock's update computed from.
func (c *Client) reads(s *sight) {
	shown := c.clock
	if sh := c.shards[s.shard]; s.stale && sh.hidden {
		shown = sh.since
	}
	if !c.based {
		c.basis, c.shown, c.based = s.r.minClock, shown, true
	}
	c.basis, c.shown = min(c.basis, s.r.minClock), min(c.shown, shown)
}

// mayKeep reports whether more updates may be kept: fewer bytes than the window wait
// to be acknowledged by shards that are there, and fewer than are allowed are
// queued for those that are out. It needs c.mu.
func (c *Client) mayKeep() bool {
	queued := c.queuedBytes()
	window := c.keptBytes
	for _, sh := range c.shards {
		if sh.out {
			window -= sh.keptBytes
		}
	}
	return (window == 0 || window < c.cfg.WindowBytes) && (queued == 0 || queued < cmp.Or(c.cfg.OutageBytes, c.job.QueuedBytes()))
}

// queuedBytes returns what the updates take that are kept for shards that are out.
func (c *Client) queuedBytes() (n int64) {
	if c.outages.shards == 0 {
		return 0
	}
	for _, sh := range c.shards {
		if sh.out {
			n += sh.keptBytes + sh.shownBytes + updateCost*int64(len(sh.kept)-sh.acked)
		}
	}
	return n
}

// waited counts the time since begin, in which a call waited, as far as a shard was
// out. It needs c.mu.
func (c *Client) waited(begin time.Time) {
	o, until := &c.outages, time.Now()
	if o.shards == 0 {
		until = o.end
	}
	if o.begin.After(begin) {
		begin = o.begin
	}
	c.stats.outageWait += max(0, until.Sub(begin))
}

// clockedOut counts a clock that is over, if a shard is out. It needs c.mu.
func (c *Client) clockedOut() {
	if c.outages.shards > 0 {
		c.stats.outageClocks++
		c.stats.queued = max(c.stats.queued, c.queuedBytes())
	}
}
