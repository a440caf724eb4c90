package worker

import (
	"context"
	"fmt"
	"math"
	"slices"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// Where the job has an update log, updates and ticks go there, and servers read them
// from there: so a worker goes on writing while a shard has no server. An update is safe,
// and under two-step clocks staged, once the log has acknowledged all of it. It is kept
// for longer only to be shown on top of rows that do not contain it yet.

// mostShown is how many bytes of such updates are kept before Clock waits for servers. Of
// shards that are out, where the job goes on without them, OutageBytes are.
const mostShown = 256 << 20

// streamLink is what this client has put into a shard's stream.
type streamLink struct {
	tables int           // of which it has said there that they exist
	clocks perdure.Clock // updates of clocks below this are whole in the log
}

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

// appendUpdate puts an update's parts from the first on into its shard's stream. It needs
// c.mu.
func (c *Client) appendUpdate(sh *shardLink, u *update, first int) {
	for ; sh.stream.tables < len(c.view.Tables); sh.stream.tables++ { // who reads the stream must know them
		f := c.shardFrame(sh, wire.KindAddTable)
		f.Clock, f.Payload = perdure.Clock(sh.stream.tables), wire.JSON(c.view.Tables[sh.stream.tables])
		c.appendFrame(sh, f, nil)
	}
	for _, f := range c.addUpdate(sh, u, first, nil) {
		if f.Parts > 0 && f.Part == f.Parts-1 {
			c.appendFrame(sh, f, u)
		} else {
			c.appendFrame(sh, f, nil)
		}
	}
}

// appendFrame puts a frame, which may complete an update, into a shard's stream. It needs
// c.mu.
func (c *Client) appendFrame(sh *shardLink, f wire.Frame, completes *update) {
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
func (c *Client) appended(sh *shardLink, u *update, err error) {
	if err != nil {
		c.logFails(err)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	sh.stream.clocks = u.until()
	if slices.Contains(sh.kept, u) {
		u.logged = true
		c.keep(sh, -u.bytes)
		sh.shownBytes += u.bytes
	}
	c.dropSafe(sh)
	c.broadcast()
}

func (c *Client) logFails(err error) { c.fail(fmt.Errorf("worker: the update log: %w", err)) }

// within reports whether so little is on its way that a clock may end. It needs c.mu.
func (c *Client) within() bool {
	shown := int64(0)
	for _, sh := range c.shards {
		if !sh.out {
			shown += sh.shownBytes
		}
	}
	return c.mayKeep() && shown < mostShown
}

// forgetBytes stops counting an update that is kept no more. It needs c.mu.
func (c *Client) forgetBytes(sh *shardLink, u *update) {
	switch {
	case u.logged:
		sh.shownBytes -= u.bytes
	case !u.open:
		c.keep(sh, -u.bytes)
	}
}

// isBack reports whether a shard has gone back behind what was acknowledged, which no
// server that has read the job's log does.
func (c *Client) isBack(sh *shardLink, counts perdure.Counts) bool {
	return c.logs() && counts.Applied < sh.counts.Applied && sh.gen == c.generation
}
