package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// After an outage, a shard takes a while to apply the updates that were queued for it or are in the log. Meanwhile its
// rows are older than those of other shards. A model that is read then mixes rows of different clocks, and its
// evaluation is wrong in either direction. A program that evaluates a model therefore waits until no shard reports that
// it lags.

const (
	// lagPollInterval is the interval at which shards are asked whether they lag.
	lagPollInterval = 25 * time.Millisecond
	// freshFor is how long a newly opened shard may not know yet which updates are under way to it. During that time it
	// must report twice that it does not lag.
	freshFor = time.Second
)

// lagReport is a shard's last report of whether it lags.
type lagReport struct {
	request uint64    // the last request that the shard answered
	lagging bool      // the shard reported that it lags
	opened  time.Time // when the shard was last opened for reading
	opens   int       // how often it was opened
}

// isOpened records that the shard was opened.
func (r *lagReport) isOpened(now time.Time) { r.opened, r.opens = now, r.opens+1 }

// answers records the shard's report.
func (r *lagReport) answers(f *wire.Frame) {
	r.request, r.lagging = f.Request, f.Flags&wire.FlagCatchingUp != 0
}

// Opens returns how often shards have been opened for reading. If the number is the same before and after some reads,
// all shards were available throughout.
func (c *Client) Opens() (n int) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.shards.opens()
}

// AwaitCaughtUp waits until no shard is known to lack existing updates, as shards do for a while after an outage, and
// reports whether that is the case. It waits until all shards are available, and from then on no longer than patience.
// It does not wait for updates that other workers make meanwhile.
func (c *Client) AwaitCaughtUp(ctx context.Context, patience time.Duration) (rest bool, err error) {
	l := c.lock()
	defer c.mu.Unlock()
	var until time.Time
	for calm := 0; ; {
		if !l.shards.open() {
			if err := l.waits.Until(ctx, func() (bool, error) { return l.shards.open(), nil }); err != nil {
				return false, err
			}
			until = time.Time{} // it was an outage
		}
		if until.IsZero() {
			until = time.Now().Add(patience)
		}
		behind, err := l.askBehind(ctx)
		if err != nil {
			return false, err
		}
		if calm++; behind {
			calm = 0
		}
		if calm > 1 || calm == 1 && !l.shards.fresh(time.Now()) {
			return true, nil
		}
		if time.Now().After(until) {
			return false, nil
		}
		if err := l.waits.Pause(ctx, lagPollInterval); err != nil {
			return false, err
		}
	}
}

// askBehind asks every shard whether it lags. A shard that does not answer within 10 lagPollInterval counts as lagging.
func (l *locked) askBehind(ctx context.Context) (behind bool, err error) {
	request := l.reads.Number()
	for _, sh := range l.shards {
		if sh.open {
			f := sh.frame(wire.KindEcho)
			f.Request = request
			sh.reader.batch = append(sh.reader.batch, f)
		}
	}
	l.servers.flush()
	soon, cancel := context.WithTimeout(ctx, 10*lagPollInterval)
	defer cancel()
	err = l.waits.Until(soon, func() (answered bool, _ error) {
		answered, behind = l.shards.answered(request)
		return answered, nil
	})
	if err != nil && soon.Err() != nil && ctx.Err() == nil && l.waits.Err == nil {
		return true, nil
	}
	return behind, err
}
