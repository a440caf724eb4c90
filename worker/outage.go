package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure"
)

const defaultOutAfter = 200 * time.Millisecond

// outages are the shards that are out, where this client is to go on without them. Which are,
// absence.go decides.
type outages struct {
	outageWatch
	on    bool               // it is to go on
	began time.Time          // the client: absence counts from here
	whole context.CancelFunc // of the context that ends when a shard is out; nil: none is asked for
}

// at is a moment, as absence.go has it.
func (o *outages) at(t time.Time) outageTime { return outageTime(t.Sub(o.began)) + 1 }

// waited counts a call that has waited since begin, as far as a shard was out.
func (o *outages) waited(begin time.Time) { o.CountWait(o.at(begin), o.at(time.Now())) }

// now describes the present outage, nil if there is none. queued is how many bytes wait.
func (o *outages) now(shards links, queued int64) *perdure.WorkerOutage {
	lasts, out := o.Outage(o.at(time.Now()))
	if !out {
		return nil
	}
	outage := &perdure.WorkerOutage{Seconds: time.Duration(lasts).Seconds(), Bytes: queued}
	for _, sh := range shards {
		if sh.absence.Out() {
			outage.Shards = append(outage.Shards, sh.id)
		}
	}
	return outage
}

// Whole returns a context that ends with ctx, and as soon as this client goes on without
// some shard: it is for what is not needed in an outage, and what would wait for its end,
// such as a reading of the newest rows. Its end must be called. Of several only the newest
// ends early.
func (c *Client) Whole(ctx context.Context) (whole context.Context, end context.CancelFunc) {
	whole, end = context.WithCancel(ctx)
	l := c.lock()
	defer c.mu.Unlock()
	if _, out := l.outages.Outage(0); out {
		end()
	} else {
		l.outages.whole = end
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
			l := c.lock()
			for _, sh := range l.shards {
				l.observe(sh, now)
			}
			l.letGo(l.log.old(now, c.cfg.OutAfter, l.waits.Longer(c.cfg.OutAfter/4, now)))
			c.mu.Unlock()
		}
	}
}

// observe looks whether a shard is out.
func (l *locked) observe(sh *shardLink, now time.Time) {
	if sh.absence.Out() && sh.stuck {
		l.release(sh)
		return
	}
	how := conduct{There: sh.there()}
	how.Owes = !how.There || sh.out.Owes(sh.rows.MinClock())
	if how.Owes && how.There {
		how.Bytes = l.shards.owed(sh)
	}
	switch l.outages.Judge(&sh.absence, how, l.outages.at(now)) {
	case isBack:
		l.isThere(sh, l.outages.at(time.Now()))
	case isGone:
		l.goOn(sh)
	}
}

// isThere notes that a shard has shown that it is there, or that nothing shows that it is
// not.
func (l *locked) isThere(sh *shardLink, now outageTime) {
	if back := l.outages.Answered(&sh.absence, now); !back {
		return
	}
	sh.stuck = false
	sh.out.SetOut(false)
	l.reads.Back(sh.rows)
	l.cfg.Log.Info("a shard is back", "shard", sh.id, "queued", sh.out.Keeps())
	l.letGo(func(other *shardLink) bool { return other == sh })
	l.waits.Wake()
}

// goOn goes on without a shard.
func (l *locked) goOn(sh *shardLink) {
	l.outages.Leaves(&sh.absence, l.outages.at(time.Now()))
	sh.out.SetOut(true)
	if l.outages.whole != nil {
		l.outages.whole()
	}
	l.cfg.Log.Warn("a shard is out; going on without it", "shard", sh.id)
	l.release(sh)
	l.waits.Wake()
}

// release lets calls that wait for a shard's rows look again: what they may read while it is
// out they find in the cache.
func (l *locked) release(sh *shardLink) {
	sh.stuck = l.reads.Out(sh.rows)
	l.carryOut()
}
