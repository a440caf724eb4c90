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
	if c.access.ReadsWithoutConsumer() {
		return c.readEach(ctx, shard, from, end, deliver, atEnd)
	}
	r := &streamRead{
		client: c, shard: shard, next: from, end: end, deliver: deliver, atEnd: sync.OnceFunc(atEnd),
		reconnects: returned,
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
		case isPermanent(err):
			return err
		}
		if err := sleep(ctx, firstPause); err != nil {
			return err
		}
	}
}

// readEach reads the existing records one at a time, for clients without the right to create consumers.
func (c *client) readEach(ctx context.Context, shard int, from, end Position,
	deliver func(Position, time.Time, []byte) error, atEnd func(),
) error {
	for at := from; at < end; at++ {
		m, err := c.rawRecord(ctx, shard, at)
		if err != nil {
			return err
		}
		if m == nil {
			first, _, err := c.extent(ctx, shard)
			if err == nil && at < first {
				err = trimmedError(c.o.Job, shard, at, first)
			}
			if err == nil {
				err = missingRecord(c.o.Job, shard, at)
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

// missingRecord returns the error for a missing record. It counts as damage, because the server skips damaged records.
func missingRecord(job string, shard int, at Position) error {
	return &DamageError{Stream: StreamName(job, shard), Shard: shard, Position: at, Reason: "the record is missing"}
}

// streamRead is one read of a shard's records, with a new consumer after each failure.
type streamRead struct {
	*client
	shard   int
	next    Position
	end     Position // when the read started
	deliver func(Position, time.Time, []byte) error
	atEnd   func()
	failed  error // permanent error that ended the read

	stored     time.Time // when the last record read was stored; zero: none was read
	reconnects uint64    // number of reconnects when the log was last checked by same
}

// run reads with one consumer until an error occurs.
func (r *streamRead) run(ctx context.Context) error {
	if r.next >= r.end {
		r.atEnd()
	}
	one, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	consumer, err := r.js.OrderedConsumer(one, StreamName(r.o.Job, r.shard), jetstream.OrderedConsumerConfig{
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: uint64(r.next), MaxResetAttempts: 1,
	})
	if err != nil {
		return r.permanentError(err, StreamName(r.o.Job, r.shard))
	}
	messages, err := consumer.Messages(jetstream.PullMaxMessagesWithBytesLimit(maxAhead, readAheadBytes(r.o.Shards)))
	if err != nil {
		return err
	}
	defer messages.Stop()
	return r.receive(ctx, messages)
}

// receive delivers messages until an error occurs.
func (r *streamRead) receive(ctx context.Context, messages jetstream.MessagesContext) error {
	for silent := 0; ; {
		m, err := r.nextMessage(ctx, messages)
		if err == nil {
			err = r.checkLastRecord(ctx)
		}
		if silent++; m != nil {
			silent = 0
		} else if err == nil && silent%maxSilent == 0 {
			err = r.checkConsumer(ctx)
		}
		switch {
		case isPermanent(err):
			r.failed = err
		case err != nil:
			return err
		case m != nil:
			r.failed = r.deliverMessage(ctx, m)
		case r.next < r.end:
			r.failed = r.checkNextRecord(ctx)
		}
		if r.failed != nil {
			return r.failed
		}
	}
}

// checkConsumer returns errSilent if the log has records that the consumer does not deliver, because the server that
// had the consumer is gone. The client's own check, by heartbeats, starts again with each wait for a message, so it
// never notices within recordTimeout.
func (r *streamRead) checkConsumer(ctx context.Context) error {
	if _, next, err := r.extent(ctx, r.shard); err != nil || next <= r.next {
		return err
	}
	return errSilent
}

// maxSilent is how often recordTimeout may pass without a message before the consumer is checked.
const maxSilent = 3

var errSilent = errors.New("the log has records that it does not deliver")

// readAheadBytes returns how many bytes a reader of one of n shards requests at the same time. All readers share one
// connection. A server closes a connection with too much pending data, or whose ping answer is stuck behind that data,
// and then everything is sent again.
func readAheadBytes(shards int) int { return max(minAhead, readAhead/shards) }

// nextMessage waits for the next message. It returns nil if none arrives in time.
func (r *streamRead) nextMessage(ctx context.Context, messages jetstream.MessagesContext) (jetstream.Msg, error) {
	soon, cancel := context.WithTimeout(ctx, recordTimeout)
	defer cancel()
	m, err := messages.Next(jetstream.NextContext(soon))
	if errors.Is(err, context.DeadlineExceeded) && ctx.Err() == nil {
		return nil, nil
	}
	return m, err
}

// checkLastRecord returns an error if the log came back without the last record that was read, or with another record
// in its place. Later records would not match. Records appended in the meantime at lower positions would never be read.
func (r *streamRead) checkLastRecord(ctx context.Context) error {
	returned := r.nc.Stats().Reconnects
	if returned == r.reconnects {
		return nil
	}
	first, next, err := r.extent(ctx, r.shard)
	// a cluster's new leader may not know of all records yet
	if err == nil && next < r.next && sleep(ctx, diagnoseTimeout) == nil {
		first, next, err = r.extent(ctx, r.shard)
	}
	switch {
	case err != nil:
		return err
	case next < r.next:
		return lostRecordsError(r.o.Job, r.shard, next)
	case r.next > first && !r.stored.IsZero():
		one, cancel := context.WithTimeout(ctx, askTimeout)
		defer cancel()
		m, err := r.streams[r.shard].GetMsg(one, uint64(r.next-1))
		if err == nil && !m.Time.Equal(r.stored) {
			return lostRecordsError(r.o.Job, r.shard, r.next-1)
		}
		if err != nil && !errors.Is(err, jetstream.ErrMsgNotFound) { // ErrMsgNotFound: the record was just trimmed
			return err
		}
	}
	r.reconnects = returned
	return nil
}

// checkNextRecord returns an error if the next record does not exist. The server skips damaged records.
func (r *streamRead) checkNextRecord(ctx context.Context) error {
	soon, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	_, err := r.streams[r.shard].GetMsg(soon, uint64(r.next))
	if !errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil // the record may still arrive, or the log is unavailable
	}
	switch first, _, err := r.extent(ctx, r.shard); {
	case err != nil:
		return err
	case r.next < first:
		return trimmedError(r.o.Job, r.shard, r.next, first)
	}
	return missingRecord(r.o.Job, r.shard, r.next)
}

// deliverMessage delivers one message.
func (r *streamRead) deliverMessage(ctx context.Context, m jetstream.Msg) error {
	meta, err := m.Metadata()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	at := Position(meta.Sequence.Stream)
	if at > r.next { // trimmed or damaged
		if first, _, err := r.extent(ctx, r.shard); err != nil {
			return err
		} else if r.next < first {
			return trimmedError(r.o.Job, r.shard, r.next, first)
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
