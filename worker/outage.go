package worker

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/availability"
)

const (
	defaultOutageAfter = 200 * time.Millisecond
	// logWaitAfter is how long calls wait in an outage until that is logged.
	logWaitAfter = time.Second
)

// outages tracks the unavailable shards, if this client continues without them. Its Watch decides which these are.
type outages struct {
	availability.Watch
	on            bool               // the client continues during outages
	began         time.Time          // start of the client, the origin of every Time
	cancelContext context.CancelFunc // cancels the newest context of ContextUntilOutage; nil: there is none
	calls         int                // reads and ends of clocks that are waiting
	logged        time.Time          // when the present wait of calls was logged; zero: it was not
}

// at converts t to a Time.
func (o *outages) at(t time.Time) availability.Time { return availability.Time(t.Sub(o.began)) + 1 }

// waits notes that a read or the end of a clock may have to wait, and returns the time. The caller must call waited.
func (o *outages) waits() (start time.Time) {
	o.calls++
	return time.Now()
}

// waited notes that a call continues. It counts the part of its wait in which some shard was unavailable.
func (o *outages) waited(start time.Time) {
	o.calls--
	o.CountWait(o.at(start), o.at(time.Now()))
}

// now describes the present outage; nil: there is none. queued is the number of bytes queued for unavailable shards.
func (o *outages) now(shards links, queued int64) *perdure.WorkerOutage {
	lasts, out := o.Outage(o.at(time.Now()))
	if !out {
		return nil
	}
	outage := &perdure.WorkerOutage{Seconds: time.Duration(lasts).Seconds(), Bytes: queued}
	for _, sh := range shards {
		if sh.outage.Unavailable() {
			outage.Shards = append(outage.Shards, sh.id)
		}
	}
	return outage
}

// ContextUntilOutage returns a context that ends with ctx, or as soon as this client continues without some shard. Use
// it for work that is not needed during an outage or would wait for its end, such as reading the newest rows. The
// caller must call end. Of several such contexts, only the newest ends early.
func (c *Client) ContextUntilOutage(ctx context.Context) (whole context.Context, end context.CancelFunc) {
	whole, end = context.WithCancel(ctx)
	l := c.lock()
	defer c.mu.Unlock()
	if _, out := l.outages.Outage(0); out {
		end()
	} else {
		l.outages.cancelContext = end
	}
	return whole, end
}

// watch checks the availability of all shards until ctx ends.
func (c *Client) watch(ctx context.Context) {
	tick := time.NewTicker(c.cfg.OutageAfter / 4)
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
			l.flushHeld(l.log.old(now, c.cfg.OutageAfter, l.waits.WaitingFor(c.cfg.OutageAfter/4, now)))
			waiting, queued := l.outages.calls > 0 && l.waits.WaitingFor(logWaitAfter, now), l.out.Queued()
			l.outages.logWait(c.cfg.Log, now, waiting, queued >= l.out.QueueLimit(), queued, l.job.OnOutage.Clocks)
			c.mu.Unlock()
		}
	}
}

// logWait logs once that an outage has lasted for too long to continue, and once that calls no longer wait. It logs
// errors, because nothing else that a program prints would show why it stands still. waiting: calls have waited for
// logWaitAfter. full: the queue of updates has reached its limit.
func (o *outages) logWait(log *slog.Logger, now time.Time, waiting, full bool, queued int64, rows perdure.Clock) {
	_, out := o.Outage(0)
	switch {
	case !waiting && !o.logged.IsZero():
		log.Error("training continues after the outage", "waited", now.Sub(o.logged).Round(time.Second)+logWaitAfter)
		o.logged = time.Time{}
		return
	case !waiting || !out || !o.logged.IsZero():
		return
	case full:
		log.Error("the queue of updates is full, so training waits until all servers answer: a larger --outage-mb "+
			"lets it continue for longer", "clocks", o.OutageClocks(),
			"queued", fmt.Sprintf("%.1f MiB", float64(queued)/(1<<20)))
	default:
		log.Error("rows in the cache are too old, or were never read, so training waits until all servers answer: a "+
			"larger N in --on-outage continue:N lets it continue for longer", "clocks", o.OutageClocks(), "N", rows)
	}
	o.logged = now
}

// observe updates the availability of a shard.
func (l *locked) observe(sh *shardLink, now time.Time) {
	if sh.stuck {
		l.release(sh)
		return
	}
	how := availability.Health{Connected: sh.connected()}
	how.AnswerPending = !how.Connected || sh.out.OwesAnswer(sh.rows.MinClock())
	if how.AnswerPending && how.Connected {
		how.Bytes = l.shards.pendingBytes(sh)
	}
	switch l.outages.Decide(&sh.outage, how, l.outages.at(now)) {
	case availability.Recovered:
		l.markAvailable(sh, l.outages.at(time.Now()))
	case availability.Failed:
		l.markUnavailable(sh)
	}
}

// outWith returns the shards that are unavailable if sh is. An atomic clock takes effect on all shards or on none.
func (s links) outWith(sh *shardLink, mode perdure.ClockMode) links {
	if mode == perdure.ClockAtomic {
		return s
	}
	return links{sh}
}

// markAvailable records that a shard has shown that it is available, or that nothing indicates otherwise.
func (l *locked) markAvailable(sh *shardLink, now availability.Time) {
	if back := l.outages.MarkAvailable(&sh.outage, now); !back {
		return
	}
	if _, out := l.outages.Outage(now); out && l.out.Mode() == perdure.ClockAtomic {
		return
	}
	for _, other := range l.shards.outWith(sh, l.out.Mode()) {
		other.stuck = false
		other.out.SetUnavailable(false)
		l.reads.MarkAvailable(other.rows)
	}
	l.cfg.Log.Info("a shard is available again", "shard", sh.id, "queued", sh.out.NumKept())
	l.flushHeld(func(other *shardLink) bool { return other == sh })
	l.waits.Wake()
}

// markUnavailable marks a shard as unavailable and continues without it.
func (l *locked) markUnavailable(sh *shardLink) {
	l.outages.MarkUnavailable(&sh.outage, l.outages.at(time.Now()))
	if l.outages.cancelContext != nil {
		l.outages.cancelContext()
	}
	l.cfg.Log.Warn("a shard is unavailable; continuing without it", "shard", sh.id)
	for _, other := range l.shards.outWith(sh, l.out.Mode()) {
		other.out.SetUnavailable(true)
		l.release(other)
	}
	l.waits.Wake()
}

// release wakes calls that wait for an unavailable shard's rows: what they may read now is in the cache.
func (l *locked) release(sh *shardLink) {
	sh.stuck = l.reads.MarkUnavailable(sh.rows)
	l.carryOut()
}
