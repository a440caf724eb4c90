package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure"
)

const (
	defaultOutAfter = 200 * time.Millisecond
	// slowest is how many bytes of updates a server is expected to apply in a second at
	// least: one that has more to do is not out because it takes longer.
	slowest = 32 << 20
	// A shard whose connections are whole is not out before it has been silent for as
	// many times Config.OutAfter, and in addition for as many times as long as its
	// answers take at present: who is slow, on a machine that is busy, is not away.
	silences = 4
	// An answer that took longer than so many times Config.OutAfter says nothing of how
	// long the next will take: the shard was away.
	mostUsual = 10
)

// outages is what a client knows of the shards that are out, where it is to go on
// without them.
type outages struct {
	shards int                // so many are out now
	begin  time.Time          // since when some are, or were last
	end    time.Time          // until when; of use while none is
	whole  context.CancelFunc // of the context that ends when one is out
}

// outage is one shard's part of it.
type outage struct {
	quiet time.Time     // since when the shard owes an answer; zero: it owes none
	usual time.Duration // so long it took to answer, lately
	stuck bool          // some who wait for the shard have not been told that it is out
	// Since when updates are held back from the update log; zero: none is.
	heldSince time.Time
}

// continues reports whether this client goes on while a shard is out.
func (c *Client) continues() bool { return c.job.OnOutage.Continue && c.slot >= 0 }

// Whole returns a context that ends with ctx, and as soon as this client goes on without
// some shard: it is for what nobody needs in an outage, and what would wait for its end,
// such as a reading of the newest rows. Its end must be called. Of several only the
// newest ends early.
func (c *Client) Whole(ctx context.Context) (whole context.Context, end context.CancelFunc) {
	whole, end = context.WithCancel(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.outages.shards > 0 {
		end()
	} else {
		c.outages.whole = end
	}
	return whole, end
}

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
			c.letOldGo(now)
			c.mu.Unlock()
		}
	}
}

// observe decides whether a shard is out: it has owed an answer for longer than is
// to be expected of one that is there. It needs c.mu.
func (c *Client) observe(sh *shardLink, now time.Time) {
	switch {
	case sh.out.Out() && sh.stuck:
		c.release(sh)
	case !c.owes(sh):
		c.answers(sh)
	case sh.quiet.IsZero():
		sh.quiet = now
	case !sh.out.Out() && now.Sub(sh.quiet) >= c.patience(sh):
		c.isOut(sh)
	}
}

// patience is how long a shard may owe an answer until it is out: Config.OutAfter if its
// server is gone, or does not have it ready; else, where nothing but its silence speaks
// for that, several times as long, and as much longer as others of its answers took, and
// as it may take its server to apply what it was sent. It needs c.mu.
func (c *Client) patience(sh *shardLink) time.Duration {
	if !sh.open || !sh.headOpen {
		return c.cfg.OutAfter
	}
	owed := int64(0)
	for _, other := range c.shards {
		if other.head == sh.head || other.reader == sh.reader {
			owed += other.out.Owed()
		}
	}
	return silences*(c.cfg.OutAfter+sh.usual) + time.Duration(float64(owed)/slowest*float64(time.Second))
}

// learns notes how long a shard took to answer that was there throughout: at once if
// it was longer than usual, little by little if shorter. It needs c.mu.
func (c *Client) learns(sh *shardLink) {
	took := time.Duration(0) // less than it takes to notice that it owes an answer
	if !sh.quiet.IsZero() {
		took = time.Since(sh.quiet)
	}
	if sh.open && sh.headOpen && took <= mostUsual*c.cfg.OutAfter {
		sh.usual = max(took, sh.usual-(sh.usual-took)/8)
	}
}

// owes reports whether a shard should have answered: it is not open, or it has an
// update that nothing holds back and that is not applied. One of a clock from the next
// cut on is held back until all slots have come there. It needs c.mu.
func (c *Client) owes(sh *shardLink) bool {
	if !sh.open || !sh.headOpen {
		return true
	}
	return sh.out.Owes(sh.rows.MinClock())
}

// answers notes that a shard has shown that it is there, or that nothing shows that
// it is not. It needs c.mu.
func (c *Client) answers(sh *shardLink) {
	sh.quiet = time.Time{}
	if !sh.out.Out() {
		return
	}
	sh.stuck = false
	sh.out.SetOut(false)
	if c.outages.shards--; c.outages.shards == 0 {
		c.outages.end = time.Now()
	}
	c.reads.Back(sh.rows)
	c.cfg.Log.Info("a shard is back", "shard", sh.id, "queued", sh.out.Keeps())
	c.letGo(sh)
	c.broadcast()
}

// isOut needs c.mu.
func (c *Client) isOut(sh *shardLink) {
	sh.out.SetOut(true)
	if c.outages.shards++; c.outages.shards == 1 {
		c.outages.begin = time.Now()
	}
	if end := c.outages.whole; end != nil {
		end()
	}
	c.cfg.Log.Warn("a shard is out; going on without it", "shard", sh.id)
	c.release(sh)
	c.broadcast()
}

// release lets those who wait for a shard's rows look again: what they may read
// while it is out they find in the cache. It needs c.mu.
func (c *Client) release(sh *shardLink) {
	sh.stuck = c.reads.Out(sh.rows)
	c.carryOut()
}

// outageNow describes the present outage, nil if there is none. It needs c.mu.
func (c *Client) outageNow(now time.Time) *perdure.WorkerOutage {
	if c.outages.shards == 0 {
		return nil
	}
	o := &perdure.WorkerOutage{Seconds: now.Sub(c.outages.begin).Seconds(), Bytes: c.out.Queued()}
	for _, sh := range c.shards {
		if sh.out.Out() {
			o.Shards = append(o.Shards, sh.id)
		}
	}
	return o
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
		c.stats.queued = max(c.stats.queued, c.out.Queued())
	}
}
