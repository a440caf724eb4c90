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
	// answers take at present: one that is slow, on a machine that is busy, is not away.
	silences = 4
	// An answer that took longer than this many times Config.OutAfter says nothing of how
	// long the next will take: the shard was away.
	mostUsual = 10
)

// outages is what a client knows of the shards that are out, where it is to go on without
// them. It takes the time as an argument.
type outages struct {
	on     bool               // it is to go on
	after  time.Duration      // Config.OutAfter
	shards int                // that are out now
	begin  time.Time          // since when some are, or were last
	end    time.Time          // until when; of use while none is
	whole  context.CancelFunc // of the context that ends when one is out

	// What was counted.
	wait   time.Duration // of calls, while some were out
	clocks int64         // that ended meanwhile
	queued int64         // bytes at most for shards that were
}

// outage is what is known of one shard.
type outage struct {
	quiet time.Time     // since when the shard owes an answer; zero: it owes none
	usual time.Duration // that it took to answer, lately
	stuck bool          // some calls that wait for the shard have not been told that it is out
}

// conduct is how a shard behaves at present.
type conduct struct {
	there bool  // its connections are whole, and it is open on them
	owes  bool  // it should have answered
	bytes int64 // of updates that its servers have to apply, for whatever shard
	out   bool  // it is out
}

// verdict is what follows from it.
type verdict int

const (
	asBefore verdict = iota
	isBack           // it owes nothing any more, or has answered
	isOut            // it has been silent for too long
	isStuck          // it is out, and not all were told
)

// judge decides whether a shard is out: it has owed an answer for longer than is to be
// expected of one that is there.
func (o *outages) judge(sh *outage, c conduct, now time.Time) verdict {
	switch {
	case c.out && sh.stuck:
		return isStuck
	case !c.owes:
		return isBack
	case sh.quiet.IsZero():
		sh.quiet = now
	case !c.out && now.Sub(sh.quiet) >= o.patience(sh, c):
		return isOut
	}
	return asBefore
}

// patience is how long a shard may owe an answer until it is out: Config.OutAfter if its
// server is gone, or does not have it ready; else, where only its silence speaks for that,
// several times as long, and as much longer as others of its answers took, and as it may
// take its servers to apply what they were sent.
func (o *outages) patience(sh *outage, c conduct) time.Duration {
	if !c.there {
		return o.after
	}
	apply := time.Duration(float64(c.bytes) / slowest * float64(time.Second))
	return silences*(o.after+sh.usual) + apply
}

// answered notes that a shard has answered. If it was there throughout, that says how long
// it takes: at once if that is longer than usual, little by little if shorter.
func (o *outages) answered(sh *outage, there bool, now time.Time) {
	took := time.Duration(0) // less than it takes to notice that it owes an answer
	if !sh.quiet.IsZero() {
		took = now.Sub(sh.quiet)
	}
	if there && took <= mostUsual*o.after {
		sh.usual = max(took, sh.usual-(sh.usual-took)/8)
	}
}

// begins notes that a shard is out.
func (o *outages) begins(now time.Time) {
	if o.shards++; o.shards == 1 {
		o.begin = now
	}
	if o.whole != nil {
		o.whole()
	}
}

// ends notes that a shard is back.
func (o *outages) ends(sh *outage, now time.Time) {
	sh.stuck = false
	if o.shards--; o.shards == 0 {
		o.end = now
	}
}

// waited counts the time since begin, in which a call waited, as far as a shard was out.
func (o *outages) waited(begin, now time.Time) {
	until := now
	if o.shards == 0 {
		until = o.end
	}
	if o.begin.After(begin) {
		begin = o.begin
	}
	o.wait += max(0, until.Sub(begin))
}

// clocked counts a clock that is over, if a shard is out. queued is how many bytes wait then.
func (o *outages) clocked(queued int64) {
	if o.shards > 0 {
		o.clocks++
		o.queued = max(o.queued, queued)
	}
}

// now describes the present outage, nil if there is none.
func (o *outages) now(at time.Time, shards links, queued int64) *perdure.WorkerOutage {
	if o.shards == 0 {
		return nil
	}
	out := &perdure.WorkerOutage{Seconds: at.Sub(o.begin).Seconds(), Bytes: queued}
	for _, sh := range shards {
		if sh.out.Out() {
			out.Shards = append(out.Shards, sh.id)
		}
	}
	return out
}

// Whole returns a context that ends with ctx, and as soon as this client goes on without
// some shard: it is for what is not needed in an outage, and what would wait for its end,
// such as a reading of the newest rows. Its end must be called. Of several only the newest
// ends early.
func (c *Client) Whole(ctx context.Context) (whole context.Context, end context.CancelFunc) {
	whole, end = context.WithCancel(ctx)
	l := c.lock()
	defer c.mu.Unlock()
	if l.outages.shards > 0 {
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
			l.letGo(l.log.old(now, c.cfg.OutAfter, l.waits.longer(c.cfg.OutAfter/4, now)))
			c.mu.Unlock()
		}
	}
}

// observe looks whether a shard is out.
func (l *locked) observe(sh *shardLink, now time.Time) {
	how := conduct{there: sh.there(), out: sh.out.Out()}
	how.owes = !how.there || sh.out.Owes(sh.rows.MinClock())
	if how.owes && how.there {
		how.bytes = l.shards.owed(sh)
	}
	switch l.outages.judge(&sh.outage, how, now) {
	case isStuck:
		l.release(sh)
	case isBack:
		l.isThere(sh)
	case isOut:
		l.isOut(sh)
	}
}

// isThere notes that a shard has shown that it is there, or that nothing shows that it is
// not.
func (l *locked) isThere(sh *shardLink) {
	sh.quiet = time.Time{}
	if !sh.out.Out() {
		return
	}
	l.outages.ends(&sh.outage, time.Now())
	sh.out.SetOut(false)
	l.reads.Back(sh.rows)
	l.cfg.Log.Info("a shard is back", "shard", sh.id, "queued", sh.out.Keeps())
	l.letGo(func(other *shardLink) bool { return other == sh })
	l.waits.wake()
}

// isOut has the client go on without a shard.
func (l *locked) isOut(sh *shardLink) {
	sh.out.SetOut(true)
	l.outages.begins(time.Now())
	l.cfg.Log.Warn("a shard is out; going on without it", "shard", sh.id)
	l.release(sh)
	l.waits.wake()
}

// release lets those who wait for a shard's rows look again: what they may read while it is
// out they find in the cache.
func (l *locked) release(sh *shardLink) {
	sh.stuck = l.reads.Out(sh.rows)
	l.carryOut()
}
