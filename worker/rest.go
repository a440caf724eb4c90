package worker

import (
	"context"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// A shard that comes back after an outage applies for a while what was queued for it, or
// what is in the log. Meanwhile its rows are older than those of other shards: a model that is
// read then is of no moment of the training, and judged too low, or too high. So who judges
// a model waits until no shard says that it is behind.

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

// onEcho takes a shard's answer. It needs c.mu.
func (c *Client) onEcho(sh *shardLink, f *wire.Frame) {
	sh.rest.request, sh.rest.behind = f.Request, f.Flags&wire.FlagBehind != 0
	c.broadcast()
}

// Opens returns how often shards have been opened to be read: what is read while it
// does not change is read from shards that were there throughout.
func (c *Client) Opens() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, sh := range c.shards {
		n += sh.rest.opens
	}
	return n
}

// AtRest waits until no shard is known to lack updates that have been made, as it does
// for a while after an outage, but no longer than patience once all shards are there; before,
// it waits for them. It reports whether none does. What others do meanwhile
// it does not wait for.
func (c *Client) AtRest(ctx context.Context, patience time.Duration) (rest bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	var until time.Time
	for calm := 0; ; {
		if !c.allOpen() {
			if err := c.wait(ctx, func() (bool, error) { return c.allOpen(), nil }); err != nil {
				return false, err
			}
			until = time.Time{} // it was an outage
		}
		if until.IsZero() {
			until = time.Now().Add(patience)
		}
		behind, err := c.askBehind(ctx)
		if err != nil {
			return false, err
		}
		if calm++; behind {
			calm = 0
		}
		if calm > 1 || calm == 1 && !c.fresh() {
			return true, nil
		}
		if time.Now().After(until) {
			return false, nil
		}
		if err := c.pause(ctx, restEvery); err != nil {
			return false, err
		}
	}
}

// allOpen reports whether every shard can be read. It needs c.mu.
func (c *Client) allOpen() bool {
	for _, sh := range c.shards {
		if !sh.open {
			return false
		}
	}
	return true
}

// fresh reports whether some shard was opened a short time ago. It needs c.mu.
func (c *Client) fresh() bool {
	for _, sh := range c.shards {
		if time.Since(sh.rest.opened) < freshFor {
			return true
		}
	}
	return false
}

// askBehind asks every shard whether it is behind; one that does not answer soon is. It
// needs c.mu, which it gives up while it waits.
func (c *Client) askBehind(ctx context.Context) (behind bool, err error) {
	request := c.reads.Number()
	for _, sh := range c.shards {
		if sh.open {
			f := c.shardFrame(sh, wire.KindEcho)
			f.Request = request
			sh.reader.batch = append(sh.reader.batch, f)
		}
	}
	c.flush()
	soon, cancel := context.WithTimeout(ctx, 10*restEvery)
	defer cancel()
	err = c.wait(soon, func() (bool, error) {
		for _, sh := range c.shards {
			if sh.rest.request != request {
				return false, nil
			}
		}
		return true, nil
	})
	if err != nil && soon.Err() != nil && ctx.Err() == nil && c.err == nil {
		return true, nil
	}
	for _, sh := range c.shards {
		behind = behind || sh.rest.behind
	}
	return behind, err
}

// pause lets time pass. It needs c.mu, which it gives up meanwhile.
func (c *Client) pause(ctx context.Context, d time.Duration) error {
	over, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	err := c.wait(over, func() (bool, error) { return false, nil })
	if c.err != nil {
		return c.err
	}
	if ctx.Err() == nil && over.Err() != nil {
		return nil
	}
	return err
}

// tellsEnded has a shard that has come back know how many clocks this slot has ended
// without it: whoever judges the model then waits until it has them. It needs c.mu.
func (c *Client) tellsEnded(sh *shardLink) {
	if c.continues() && sh.out.EndedUnapplied() {
		sh.reader.batch = append(sh.reader.batch, c.syncFrame(sh))
	}
}
