package updatelog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

func (c *client) read(ctx context.Context, shard int, from Position, deliver func(Position, time.Time, []byte) error,
	atEnd func(),
) error {
	returned := c.nc.Stats().Reconnects
	_, end, err := c.extent(ctx, shard)
	if err != nil {
		return err
	}
	if c.access.ReadsOneByOne() {
		return c.readEach(ctx, shard, from, end, deliver, atEnd)
	}
	r := &reading{
		client: c, shard: shard, next: from, end: end, deliver: deliver, atEnd: sync.OnceFunc(atEnd),
		returned: returned,
	}
	for {
		err := r.run(ctx)
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case r.failed != nil:
			return r.failed
		case c.nc.IsClosed():
			return ErrClosed
		case lasting(err):
			return err
		}
		if err := sleep(ctx, firstPause); err != nil {
			return err
		}
	}
}

// readEach reads up to the end that there was, one record after the other, for who only looks.
func (c *client) readEach(ctx context.Context, shard int, from, end Position,
	deliver func(Position, time.Time, []byte) error, atEnd func(),
) error {
	for at := from; at < end; at++ {
		m, err := c.raw(ctx, shard, at)
		if err != nil {
			return err
		}
		if m == nil {
			first, _, err := c.extent(ctx, shard)
			if err == nil && at < first {
				err = trimmed(c.o.Job, shard, at, first)
			}
			if err == nil {
				err = missing(c.o.Job, shard, at)
			}
			return err
		}
		if err := deliver(at, m.Time, m.Data); err != nil {
			return err
		}
	}
	atEnd()
	<-ctx.Done()
	return ctx.Err()
}

// missing is damage: a server passes over what it finds damaged.
func missing(job string, shard int, at Position) error {
	return &DamageError{Stream: StreamName(job, shard), Shard: shard, Position: at, Reason: "it is missing"}
}

// reading is one Read of a shard's records, over as many consumers as it takes.
type reading struct {
	*client
	shard   int
	next    Position
	end     Position // when the reading began
	deliver func(Position, time.Time, []byte) error
	atEnd   func()
	failed  error // why it is over

	stored   time.Time // the last record that was read; zero: none was
	returned uint64    // how often the log had come back when it was last seen to be the same
}

// run reads until something fails.
func (r *reading) run(ctx context.Context) error {
	if r.next >= r.end {
		r.atEnd()
	}
	one, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	consumer, err := r.js.OrderedConsumer(one, StreamName(r.o.Job, r.shard), jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(r.next), MaxResetAttempts: 1,
	})
	if err != nil {
		return r.refusal(err, StreamName(r.o.Job, r.shard))
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(mostAhead, ahead(r.o.Shards)))
	if err != nil {
		return err
	}
	defer messages.Stop()
	for {
		m, err := r.one(ctx, messages)
		if err == nil {
			err = r.same(ctx)
		}
		switch {
		case lasting(err):
			r.failed = err
		case err != nil:
			return err
		case m != nil:
			r.failed = r.take(ctx, m)
		case r.next < r.end:
			r.failed = r.lost(ctx)
		}
		if r.failed != nil {
			return r.failed
		}
	}
}

// ahead is how many bytes a reader of one of n shards asks for at once. All of them
// come over one connection, which a server cuts that has too much to send on it, or whose
// answer to a ping is stuck behind that: and then all is sent again.
func ahead(shards int) int { return max(leastAhead, readAhead/shards) }

// one waits for the next message; nil when none comes for long.
func (r *reading) one(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	soon, cancel := context.WithTimeout(ctx, overdue)
	defer cancel()
	m, err := messages.Next(jetstream.NextContext(soon))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil
	}
	return m, err
}

// same returns what is wrong if a log that was away has come back without the last record
// that was read, or with another in its place: nothing that follows would fit, and what is
// appended meanwhile, before the position to read from, would never be read.
func (r *reading) same(ctx context.Context) error {
	returned := r.nc.Stats().Reconnects
	if returned == r.returned {
		return nil
	}
	first, next, err := r.extent(ctx, r.shard)
	// a cluster's new leader may not know of all at once
	if err == nil && next < r.next && sleep(ctx, lookTimeout) == nil {
		first, next, err = r.extent(ctx, r.shard)
	}
	switch {
	case err != nil:
		return err
	case next < r.next:
		return lostEnd(r.o.Job, r.shard, next)
	case r.next > first && !r.stored.IsZero():
		one, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		m, err := r.streams[r.shard].GetMsg(one, uint64(r.next-1))
		if err == nil && !m.Time.Equal(r.stored) {
			return lostEnd(r.o.Job, r.shard, r.next-1)
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) { // else it was just trimmed
			return err
		}
	}
	r.returned = returned
	return nil
}

// lost returns what is wrong if the next record is not there: the server passes
// over what it finds damaged.
func (r *reading) lost(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := r.streams[r.shard].GetMsg(soon, uint64(r.next))
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil // it comes yet, or the log is away
	}
	switch first, _, err := r.extent(ctx, r.shard); {
	case err != nil:
		return err
	case r.next < first:
		return trimmed(r.o.Job, r.shard, r.next, first)
	}
	return missing(r.o.Job, r.shard, r.next)
}

// take delivers one message.
func (r *reading) take(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	at := Position(meta.Sequence.Stream)
	if at > r.next { // trimmed, or damaged
		if first, _, err := r.extent(ctx, r.shard); err != nil {
			return err
		} else if r.next < first {
			return trimmed(r.o.Job, r.shard, r.next, first)
		}
	}
	if err := r.deliver(at, meta.Timestamp, m.Data()); err != nil {
		return err
	}
	if r.next, r.stored = at+1, meta.Timestamp; r.next >= r.end {
		r.atEnd()
	}
	return nil
}
