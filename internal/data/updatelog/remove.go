package updatelog

import (
	"context"
	"errors"
	"fmt"
	"time"

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
				"remove them with perdure log rm URL --job %s", why, name, err, c.o.Job)
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

// InUse says how streams are used now, or were lately; "": they are not, as far as it shows.
func (i *Inspector) InUse(ctx context.Context, streams []Stream, lately time.Duration) (how string, err error) {
	for _, s := range streams {
		err := i.c.ask(ctx, func(ctx context.Context) error {
			how, err = i.use(ctx, s.Name, lately)
			return i.c.refusal(err, s.Name)
		})
		if err != nil || how != "" {
			return how, err
		}
	}
	return "", nil
}

// use says how one stream is used. Who was killed leaves consumers behind that ask for nothing.
func (i *Inspector) use(ctx context.Context, name string, lately time.Duration) (string, error) {
	stream, err := i.c.js.Stream(ctx, name)
	if err != nil {
		return "", err
	}
	list := stream.ListConsumers(ctx)
	how := ""
	for c := range list.Info() {
		switch last := c.Delivered.Last; {
		case c.NumWaiting > 0 || c.PushBound:
			how = fmt.Sprintf("stream %s is read now", name)
		case how == "" && last != nil && c.TimeStamp.Sub(*last) < lately:
			how = fmt.Sprintf("stream %s was read %.0f s ago", name, c.TimeStamp.Sub(*last).Seconds())
		}
	}
	info := stream.CachedInfo()
	if ago := info.TimeStamp.Sub(info.State.LastTime); how == "" && ago < lately {
		how = fmt.Sprintf("stream %s got a record %.0f s ago", name, ago.Seconds())
	}
	return how, list.Err()
}

// Removed is what Remove has removed.
type Removed struct {
	Streams  int
	Bytes    uint64 // of their records
	Promised int64  // that they might have come to take: room for others now
}

// Remove removes streams, for good. Who uses them cannot go on.
func (i *Inspector) Remove(ctx context.Context, streams []Stream) (r Removed, err error) {
	for _, s := range streams {
		var stream jetstream.Stream
		err := i.c.ask(ctx, func(ctx context.Context) error {
			stream, err = i.c.js.Stream(ctx, s.Name)
			return i.c.refusal(err, s.Name)
		})
		if err == nil {
			err = i.c.remove(ctx, s.Name)
		}
		if err != nil {
			return r, err
		}
		info := stream.CachedInfo()
		r.Streams++
		r.Bytes += info.State.Bytes
		r.Promised += max(info.Config.MaxBytes, 0)
	}
	return r, nil
}
