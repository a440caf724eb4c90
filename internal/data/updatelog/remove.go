package updatelog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/nats-io/nats.go/jetstream"
)

// Create creates the streams of a new job, all or none. If one cannot be created, it removes those that it has created
// and leaves existing streams alone. It returns an error for a log that already has records of the job. Otherwise it is
// like Dial.
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
			return c.removeCreated(ctx, err)
		}
	}
	c.opened()
	return nil
}

// create creates a shard's stream, or finds an empty one.
func (c *client) create(ctx context.Context, shard int) error {
	s, err := c.open(ctx, shard)
	if err != nil {
		return err
	}
	if s.CachedInfo().State.LastSeq > 0 {
		return fmt.Errorf("%w: the log at %s already has updates of this job, but a new run needs an empty log",
			ErrRefused, c.url)
	}
	return nil
}

// removeCreated removes the streams that this client created. It returns why, and which streams could not be removed.
func (c *client) removeCreated(ctx context.Context, why error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout) // the original context may be the cause
	defer cancel()
	for _, name := range c.created {
		if err := c.remove(ctx, name); err != nil {
			return fmt.Errorf("%w; stream %s of this job and possibly others could not be removed (%w): "+
				"remove them with nats stream rm", why, name, err)
		}
	}
	return why
}

// remove deletes a stream if it exists.
func (c *client) remove(ctx context.Context, name string) error {
	return c.requestUntilFinal(ctx, func(ctx context.Context) error {
		err := c.js.DeleteStream(ctx, name)
		if errors.Is(err, jetstream.ErrStreamNotFound) {
			return nil
		}
		return c.permanentError(err, name)
	})
}

// Remove deletes streams permanently, the last one first. Processes that use them cannot continue. If Remove fails, the
// remaining streams do not look damaged, because streams are created in the order of the shards.
func (i *Inspector) Remove(ctx context.Context, streams []Stream) error {
	for _, s := range slices.Backward(streams) {
		if err := i.c.remove(ctx, s.Name); err != nil {
			return err
		}
	}
	return nil
}
