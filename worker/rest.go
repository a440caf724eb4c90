package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// A shard that comes back after an outage applies for a while what was queued for it, or
// what is in the log. Meanwhile its rows are older than those of other shards: a model that is
// read then is of no moment of the training, and is judged too low, or too high. So a program
// that judges a model waits until no shard says that it is behind.

const (
	// restEvery is how often shards are asked whether they are behind.
	restEvery = 25 * time.Millisecond
	// freshFor is how long after a shard was opened it may not have been told yet what is
	// under way to it: then it must say twice that it is not behind.
	freshFor = time.Second
)

// rest is what a shard said last of whether it is behind.
type rest struct {
	request uint64    // that it answered
	behind  bool      // it said so
	opened  time.Time // when it was opened last, to be read
	opens   int       // how often it was
}

// isOpened notes that the shard was opened.
func (r *rest) isOpened(now time.Time) { r.opened, r.opens = now, r.opens+1 }

// answers takes what the shard says of itself.
func (r *rest) answers(f *wire.Frame) { r.request, r.behind = f.Request, f.Flags&wire.FlagBehind != 0 }

// Opens returns how often shards have been opened to be read. What is read while the number
// stays the same is read from shards that were there throughout.
func (c *Client) Opens() (n int) {
	l := c.lock()
	defer c.mu.Unlock()
	return l.shards.opens()
}

// AtRest waits until no shard is known to lack updates that have been made, as shards do for a
// while after an outage, and reports whether it is so. It waits until all shards are there, and
// from then on no longer than patience. It does not wait for what others do meanwhile.
func (c *Client) AtRest(ctx context.Context, patience time.Duration) (rest bool, err error) {
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
		if err := l.waits.Pause(ctx, restEvery); err != nil {
			return false, err
		}
	}
}

// askBehind asks every shard whether it is behind; one that does not answer soon is.
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
	soon, cancel := context.WithTimeout(ctx, 10*restEvery)
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
