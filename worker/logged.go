package worker

import (
	"context"
	"fmt"
	"math"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/outbox"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// Where the job has an update log, updates and ticks go there, and servers read them
// from there: so a worker goes on writing while a shard has no server. An update is safe,
// and under two-step clocks staged, once the log has acknowledged all of it. It is kept
// for longer only to be shown on top of rows that do not contain it yet.

// logs reports whether updates go to an update log. It needs to be welcome.
func (c *Client) logs() bool { return c.traits.Logged() }

// openLog opens the job's update log, if it has one.
func (c *Client) openLog(ctx context.Context) error {
	if !c.logs() || c.cfg.Observer {
		return nil
	}
	open := c.cfg.OpenLog
	if open == nil {
		open = func(ctx context.Context, addr string, o updatelog.Options) (updatelog.Log, error) {
			return updatelog.Dial(ctx, addr, updatelog.DialOptions{Options: o, ReadOnly: true}) // servers have made it
		}
	}
	keys := wire.Keys{Job: c.secret}
	updates, err := open(ctx, updatelog.Authorized(c.job.Log, keys.LogToken(&c.job)), updatelog.Options{
		Job: c.job.ID, Shards: c.job.Shards, Status: c.onLogStatus,
		Lost:  func(_ int, err error) { c.logFails(err) },
		Bound: math.MaxInt, // the window is the bound: Append, then, never waits
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.updates = updates
	return nil
}

// onLogStatus is told when the log takes nothing, and when it does again.
func (c *Client) onLogStatus(shard int, why error) {
	switch news := c.logWaits.Note(shard, why); {
	case news && why != nil:
		c.cfg.Log.Warn("updates wait for the update log", "shard", shard, "why", why)
	case news:
		c.cfg.Log.Info("updates go to the update log again", "shard", shard)
	}
}

// appendParts puts those parts of a shard's updates into its stream that are not there yet.
// mayHold says that the newest update may wait, to be merged with the next. It needs c.mu.
func (c *Client) appendParts(sh *shardLink, mayHold bool) {
	entries := sh.out.ToLog(c.header(sh), mayHold)
	for _, e := range entries {
		c.appendFrame(sh, e.Frame, e.Completes)
	}
	switch {
	case !sh.out.Holding():
		sh.heldSince = time.Time{}
	case len(entries) > 0 || sh.heldSince.IsZero():
		sh.heldSince = time.Now()
	}
}

// letGo gives the update log what is held back from it for a shard. It needs c.mu.
func (c *Client) letGo(sh *shardLink) {
	if sh.out.Holding() {
		c.appendParts(sh, false)
	}
}

// letAllGo is letGo for all shards.
func (c *Client) letAllGo() {
	for _, sh := range c.shards {
		c.letGo(sh)
	}
}

// holdsFor is for how many times Config.OutAfter an update is held back from the log: others,
// to whom the shard is there, may wait for its clocks.
const holdsFor = 10

// letOldGo is letGo where somebody may wait for it: where this process itself waits, maybe
// for another that waits for these clocks, and where it takes long over them. It needs c.mu.
func (c *Client) letOldGo(now time.Time) {
	waits := len(c.waiting) > 0 && now.Sub(c.waitsSince) >= c.cfg.OutAfter/4
	for _, sh := range c.shards {
		if waits || now.Sub(sh.heldSince) >= holdsFor*c.cfg.OutAfter {
			c.letGo(sh)
		}
	}
}

// appendFrame puts a frame, which may complete an update, into a shard's stream. It needs
// c.mu.
func (c *Client) appendFrame(sh *shardLink, f wire.Frame, completes *outbox.Update) {
	header := make([]byte, wire.HeaderBytes)
	wire.PutHeader(header, &f)
	err := c.updates.Append(context.Background(), int(sh.id), [][]byte{header, f.Payload, f.Body}, func(_ updatelog.Position, err error) {
		if err != nil || completes != nil {
			c.appended(sh, completes, err)
		}
	})
	if err != nil {
		c.done.Go(func() { c.logFails(err) })
	}
}

// appended notes that an update is in the log, or that the log takes no more.
func (c *Client) appended(sh *shardLink, u *outbox.Update, err error) {
	if err != nil {
		c.logFails(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sh.out.Logged(u)
	if c.out.Crowds() {
		c.notify()
	}
	c.broadcast()
}

func (c *Client) logFails(err error) { c.fail(fmt.Errorf("worker: the update log: %w", err)) }

// isBack reports whether a shard has gone back behind what was acknowledged, which no
// server that has read the job's log does.
func (c *Client) isBack(sh *shardLink, counts perdure.Counts) bool {
	return c.logs() && counts.Applied < sh.out.Counts().Applied && sh.gen == c.generation
}
