package updatelog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// store is the storage of a log: JetStream, or memory.
type store interface {
	// publish appends the records of a group in order, each after the one before, and returns the last one's position
	// once all are durable. After an error, any of them may have been stored. An error is worth a retry unless lasting
	// reports true for it.
	publish(ctx context.Context, shard int, records [][]byte) (Position, error)
	// read delivers the records from a position on. It calls atEnd once, when it has delivered the last record that
	// existed when it started.
	read(ctx context.Context, shard int, from Position,
		deliver func(at Position, stored time.Time, record []byte) error, atEnd func()) error
	extent(ctx context.Context, shard int) (first, next Position, err error)
	// record returns the record at a position, or nil if there is none.
	record(ctx context.Context, shard int, at Position) ([]byte, error)
	// onAvailable sets the function that is called when the log is available again, perhaps without all its records.
	// The function must not block.
	onAvailable(f func())
	trim(ctx context.Context, shard int, before Position) error
	// bound returns the maximum size of a stream in bytes, or 0 if it is unlimited.
	bound() int
	close() error
}

// Limits for grouping and retrying entries.
const (
	MaxGroupBytes    = 8 << 20 // bytes of a group; a single larger entry is a group of its own
	maxGroupFraction = 4       // a group takes at most this fraction of a stream's limit
	firstPause       = 20 * time.Millisecond
	maxPause         = time.Second
	slowReply        = time.Second
)

// log implements Log on a store.
type log struct {
	Options
	store    store
	producer uint64
	ctx      context.Context // canceled by Close
	cancel   context.CancelFunc
	inFlight *semaphore.Weighted // bytes in flight, at most MaxInFlight
	running  sync.WaitGroup      // goroutines that Close waits for
	checks   backgroundChecks
	queues   []shardQueue // by shard
}

// shardQueue queues the entries of one shard.
type shardQueue struct {
	mu     sync.Mutex // guards the fields up to last
	queue  []pending
	busy   bool  // a goroutine is sending the queue
	failed error // no more entries are sent
	closed bool
	last   acked

	group uint64 // number of the last group; used only by the sending goroutine
}

// pending is an entry in flight.
type pending struct {
	entry [][]byte
	size  int
	done  func(Position, error)
}

func newLog(o Options, s store, producer uint64) *log {
	ctx, cancel := context.WithCancel(context.Background())
	l := &log{
		Options: o, store: s, producer: producer, ctx: ctx, cancel: cancel,
		inFlight: semaphore.NewWeighted(int64(o.MaxInFlight)), queues: make([]shardQueue, o.Shards),
	}
	s.onAvailable(l.onAvailable)
	return l
}

// Append implements Log.
func (l *log) Append(ctx context.Context, shard int, entry [][]byte, done func(Position, error)) error {
	if err := l.checkShard(shard); err != nil {
		return err
	}
	p := pending{entry: entry, size: entrySize(entry) + lengthPrefix, done: done}
	if !l.inFlight.TryAcquire(l.boundBytes(p)) {
		ctx, over := l.untilClosed(ctx)
		defer over()
		if err := l.inFlight.Acquire(ctx, l.boundBytes(p)); err != nil {
			return l.closedError(err)
		}
	}
	n := &l.queues[shard]
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.checkOpen(); err != nil {
		l.inFlight.Release(l.boundBytes(p))
		return err
	}
	n.queue = append(n.queue, p)
	if !n.busy {
		n.busy = true
		l.running.Go(func() { l.sendQueue(shard, n) })
	}
	return nil
}

// boundBytes returns how much of the bound an entry uses. An entry larger than the bound is sent alone.
func (l *log) boundBytes(p pending) int64 { return int64(min(p.size, l.MaxInFlight)) }

func (n *shardQueue) checkOpen() error {
	if n.closed {
		return ErrClosed
	}
	return n.failed
}

// sendQueue sends the entries of a lane, one group after another. A group is sent only when the previous one is
// durable, so retries never change the order.
func (l *log) sendQueue(shard int, n *shardQueue) {
	for {
		group, failed := n.next(l.groupBytes())
		if len(group) == 0 {
			return
		}
		at, err := Position(0), failed
		if err == nil {
			at, err = l.storeGroup(shard, n, group)
		}
		if err != nil {
			n.mu.Lock()
			n.failed = err
			n.mu.Unlock()
		}
		for _, p := range group {
			l.inFlight.Release(l.boundBytes(p))
			p.done(at, err)
		}
	}
}

// groupBytes returns the maximum size of a group with more than one entry. A full stream accepts a group again as soon
// as that much of it was trimmed.
func (l *log) groupBytes() int {
	if bound := l.store.bound(); bound > 0 {
		return min(MaxGroupBytes, bound/maxGroupFraction)
	}
	return MaxGroupBytes
}

// next removes the entries of the next group, of at most max bytes, from the queue. If the queue is empty, the sending
// goroutine must end.
func (n *shardQueue) next(most int) (group []pending, failed error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	size, k := 0, 0
	for k < len(n.queue) && (k == 0 || size+n.queue[k].size <= most) {
		size += n.queue[k].size
		k++
	}
	group = n.queue[:k:k]
	if n.queue = n.queue[k:]; k == 0 {
		n.busy, n.queue = false, nil
	}
	return group, n.failed
}

// storeGroup sends one group until it is durable. Every attempt uses a new group number, so records of a failed attempt
// are never mistaken for records of the next.
func (l *log) storeGroup(shard int, n *shardQueue, group []pending) (Position, error) {
	entries := make([][][]byte, len(group))
	for i, p := range group {
		entries[i] = p.entry
	}
	waiting := false
	for pause := firstPause; ; pause = min(2*pause, maxPause) {
		n.group++
		records := encode(Header{Job: l.Job, Shard: shard, Producer: l.producer, Group: n.group}, entries)
		started := time.Now()
		answered := l.reportSlow(shard)
		at, err := l.store.publish(l.ctx, shard, records)
		waiting = answered() || waiting
		// Readers may have discarded the group as too slow.
		if took := time.Since(started); err == nil && took > MaxSpan/2 {
			err = fmt.Errorf("%w: storing %d records took %v", ErrAway, len(records), took.Round(time.Second))
		}
		if err == nil {
			err = n.acknowledged(l.Job, shard, at)
		}
		switch {
		case err == nil:
			if waiting {
				l.Status(shard, nil)
			}
			return at, nil
		case l.ctx.Err() != nil:
			return 0, ErrClosed
		case isPermanent(err):
			return 0, err
		}
		waiting = true
		l.Status(shard, err)
		if sleep(l.ctx, pause) != nil {
			return 0, ErrClosed
		}
	}
}

// acknowledged records that the lane's last group is durable. Its position must be after that of the previous group.
func (n *shardQueue) acknowledged(job string, shard int, at Position) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at <= n.last.at {
		return lostRecordsError(job, shard, at)
	}
	n.last = acked{at: at, group: n.group}
	return nil
}

// reportSlow reports through Status that a shard waits when a request has no answer after slowReply. A stalled log
// does not break connections, so no other error would show it. The caller must call the returned function when the
// request ends; it reports whether Status was called.
func (l *log) reportSlow(shard int) (answered func() bool) {
	var mu sync.Mutex
	sent, over := false, false
	t := time.AfterFunc(slowReply, func() {
		mu.Lock()
		defer mu.Unlock()
		if sent = !over; sent {
			l.Status(shard, fmt.Errorf("%w: no response within %v", ErrAway, slowReply))
		}
	})
	return func() bool {
		t.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		return sent
	}
}

// isPermanent reports whether an error is permanent, so that waiting does not help.
func isPermanent(err error) bool {
	return errors.Is(err, ErrRefused) || errors.Is(err, ErrClosed) || errors.Is(err, ErrTrimmed) ||
		errors.Is(err, ErrDamaged)
}

func sleep(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Read implements Log.
func (l *log) Read(ctx context.Context, shard int, from Position, deliver func(Entry) error,
	caughtUp func(Position),
) error {
	if err := l.checkShard(shard); err != nil {
		return err
	}
	if caughtUp == nil {
		caughtUp = func(Position) {}
	}
	ctx, over := l.untilClosed(ctx)
	defer over()
	first, next, err := l.store.extent(ctx, shard)
	if err != nil {
		return l.closedError(err)
	}
	if from == Oldest {
		from = first
	}
	if from < first || from > next {
		return fmt.Errorf("%w: cannot read shard %d from position %d; its log holds positions %d to %d",
			ErrTrimmed, shard,
			from, first, next-1)
	}
	return l.closedError((&reader{
		assembler: newAssembler(l.Job, shard, from), deliver: deliver,
		caughtUp: caughtUp,
	}).run(ctx, l.store))
}

// untilClosed returns ctx, canceled early when the log is closed.
func (l *log) untilClosed(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	if l.ctx.Err() != nil {
		cancel()
	}
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// closedError returns ErrClosed if a call failed because the log was closed, and err otherwise.
func (l *log) closedError(err error) error {
	if err != nil && errors.Is(err, context.Canceled) && l.ctx.Err() != nil {
		return ErrClosed
	}
	return err
}

// Extent implements Log.
func (l *log) Extent(ctx context.Context, shard int) (first, next Position, err error) {
	if err := l.checkShard(shard); err != nil {
		return 0, 0, err
	}
	ctx, over := l.untilClosed(ctx)
	defer over()
	first, next, err = l.store.extent(ctx, shard)
	return first, next, l.closedError(err)
}

// Trim implements Log.
func (l *log) Trim(ctx context.Context, shard int, before Position) error {
	if err := l.checkShard(shard); err != nil {
		return err
	}
	ctx, over := l.untilClosed(ctx)
	defer over()
	return l.closedError(l.store.trim(ctx, shard, before))
}

// Close implements Log.
func (l *log) Close() error {
	for i := range l.queues {
		n := &l.queues[i]
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
	}
	l.checks.stop()
	l.cancel()
	l.running.Wait()
	return l.store.close()
}
