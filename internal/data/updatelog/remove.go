package updatelog

import (
	"context"
	"errors"
	"fmt"

	"github.com/nats-io/nats.go/jetstream"
)

// Create makes the streams of a job that begins: all, or none. Where one cannot be made, it
// removes those that it has made, and leaves alone what was there. It refuses a log that has
// records of the job. Otherwise it is like Dial.
func Create(ctx context.Context, url string, o DialOptions) error {
	c, err := connect(ctx, url, o)
	if err != nil {
		return err
	}
	defer c.nc.Close()
	if err := c.o.check(); err != nil {
		return err
	}
	for shard := range c.o.Shards {
		if err := c.create(ctx, shard); err != nil {
			return c.undo(ctx, err)
		}
	}
	c.opened()
	return nil
}

// create makes a shard's stream, or finds one that is as good as new.
func (c *client) create(ctx context.Context, shard int) error {
	s, err := c.open(ctx, shard)
	if err != nil {
		return err
	}
	if s.CachedInfo().State.LastSeq > 0 {
		return fmt.Errorf("%w: the log at %s has updates of this job already; a run begins with an empty one",
			ErrRefused, c.url)
	}
	return nil
}

// undo removes the streams that this client has made, and returns why it had to, and what
// is left.
func (c *client) undo(ctx context.Context, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout) // it may have ended: that may be why
	defer cancel()
	for _, name := range c.made {
		if err := c.remove(ctx, name); err != nil {
			return fmt.Errorf("%w; of what was made of this job's log, stream %s and maybe more are left (%w): "+
				"remove them with nats stream rm", why, name, err)
		}
	}
	return why
}

// remove deletes a stream, if it is there.
func (c *client) remove(ctx context.Context, name string) error {
	return c.ask(ctx, func(ctx context.Context) error {
		err := c.js.DeleteStream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		return c.refusal(err, name)
	})
}

// Remove deletes streams permanently. Processes that use them cannot continue.
func (i *Inspector) Remove(ctx context.Context, streams []Stream) error {
	for _, s := range streams {
		if err := i.c.remove(ctx, s.Name); err != nil {
			return err
		}
	}
	return nil
}
