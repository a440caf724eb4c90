package updatelog

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/semaphore"
)

// store is what the two implementations differ in: where records are kept.
type store interface {
	// publish appends the records of a group in order, each before the next, and
	// returns the last one's position once all are durable. After an error any of
	// them may be there. An error that wraps none of the errors that last is worth
	// another try.
	publish(ctx context.Context, shard int, records [][]byte) (Position, error)
	// read delivers the records from a position on, and calls atEnd when the last
	// one that there was has been delivered: once, for the end when it began.
	read(ctx context.Context, shard int, from Position,
		deliver func(at Position, stored time.Time, record []byte) error, atEnd func()) error
	extent(ctx context.Context, shard int) (first, next Position, err error)
	// record returns the record at a position; nil: there is none.
	record(ctx context.Context, shard int, at Position) ([]byte, error)
	// onReturn names the function that is called, and does not block, when the log has come
	// back, perhaps without all that was there.
	onReturn(f func())
	trim(ctx context.Context, shard int, before Position) error
	// bound is how many bytes a stream takes at most; 0: there is no bound.
	bound() int
	close() error
}

// How entries are put together and tried again.
const (
	MaxGroup   = 8 << 20 // a group holds more only if its one entry does
	boundParts = 4       // nor more than such a part of what a stream takes
	firstPause = 20 * time.Millisecond
	longPause  = time.Second
	lateAnswer = time.Second
)

// log is a Log over any store.
type log struct {
	Options
	store    store
	producer uint64
	ctx      context.Context // ends with Close
	cancel   context.CancelFunc
	room     *semaphore.Weighted // bytes on their way, at most Bound
	running  sync.WaitGroup      // what Close waits for
	looks    looks
	lanes    []lane // by shard
}

// lane is what waits to go to one shard.
type lane struct {
	mu     sync.Mutex // guards what follows
	queue  []pending
	busy   bool  // a goroutine works on the queue
	failed error // nothing more goes
	closed bool
	last   acked

	group uint64 // the last group's number; the goroutine's own
}

// pending is an entry on its way.
type pending struct {
	entry [][]byte
	size  int
	done  func(Position, error)
}

func newLog(o Options, s store, producer uint64) *log {
	ctx, cancel := context.WithCancel(context.Background())
	l := &log{
		Options: o, store: s, producer: producer, ctx: ctx, cancel: cancel,
		room: semaphore.NewWeighted(int64(o.Bound)), lanes: make([]lane, o.Shards),
	}
	s.onReturn(l.returned)
	return l
}

// Append implements Log.
func (l *log) Append(ctx context.Context, shard int, entry [][]byte, done func(Position, error)) error {
	if err := l.has(shard); err != nil {
		return err
	}
	p := pending{entry: entry, size: entrySize(entry) + lengthPrefix, done: done}
	if !l.room.TryAcquire(l.weight(p)) {
		ctx, over := l.within(ctx)
		defer over()
		if err := l.room.Acquire(ctx, l.weight(p)); err != nil {
			return l.ended(err)
		}
	}
	n := &l.lanes[shard]
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := n.usable(); err != nil {
		l.room.Release(l.weight(p))
		return err
	}
	n.queue = append(n.queue, p)
	if !n.busy {
		n.busy = true
		l.running.Go(func() { l.push(shard, n) })
	}
	return nil
}

// weight returns an entry's part of the bound. An entry larger than the bound goes alone.
func (l *log) weight(p pending) int64 { return int64(min(p.size, l.Bound)) }

func (n *lane) usable() error {
	if n.closed {
		return ErrClosed
	}
	return n.failed
}

// push sends what a lane holds, one group after the other: the next goes when
// the one before is durable, so that trying again never changes the order.
func (l *log) push(shard int, n *lane) {
	for {
		group, failed := n.next(l.groupBytes())
		if len(group) == 0 {
			return
		}
		at, err := Position(0), failed
		if err == nil {
			at, err = l.keep(shard, n, group)
		}
		if err != nil {
			n.mu.Lock()
			n.failed = err
			n.mu.Unlock()
		}
		for _, p := range group {
			l.room.Release(l.weight(p))
			p.done(at, err)
		}
	}
}

// groupBytes is how much goes together at most, unless it is one entry. A stream that
// was full takes a group as soon as that part of it was trimmed.
func (l *log) groupBytes() int {
	if bound := l.store.bound(); bound > 0 {
		return min(MaxGroup, bound/boundParts)
	}
	return MaxGroup
}

// next takes the entries of the next group, of at most that number of bytes, off the queue;
// without any, the lane's goroutine is over.
func (n *lane) next(most int) (group []pending, failed error) {
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

// keep sends one group until it is durable. Every try is a new group: records
// of one that failed are never taken for parts of the next.
func (l *log) keep(shard int, n *lane, group []pending) (Position, error) {
	entries := make([][][]byte, len(group))
	for i, p := range group {
		entries[i] = p.entry
	}
	waiting := false
	for pause := firstPause; ; pause = min(2*pause, longPause) {
		n.group++
		records := encode(Header{Job: l.Job, Shard: shard, Producer: l.producer, Group: n.group}, entries)
		begun := time.Now()
		answered := l.unanswered(shard)
		at, err := l.store.publish(l.ctx, shard, records)
		waiting = answered() || waiting
		if took := time.Since(begun); err == nil && took > MaxSpan/2 { // readers may find that it took too long
			err = fmt.Errorf("%w in time: %d records took %v", ErrAway, len(records), took.Round(time.Second))
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
		case lasting(err):
			return 0, err
		}
		waiting = true
		l.Status(shard, err)
		if sleep(l.ctx, pause) != nil {
			return 0, ErrClosed
		}
	}
}

// acknowledged notes that the lane's last group is durable. Its place must come after that of
// the one before.
func (n *lane) acknowledged(job string, shard int, at Position) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if at <= n.last.at {
		return lostEnd(job, shard, at)
	}
	n.last = acked{at: at, group: n.group}
	return nil
}

// unanswered tells, once what was sent has gone for long without an answer, that it waits:
// a log that stands still breaks no connection. The function that it returns ends that,
// and reports whether it was told.
func (l *log) unanswered(shard int) (answered func() bool) {
	var mu sync.Mutex
	told, over := false, false
	t := time.AfterFunc(lateAnswer, func() {
		mu.Lock()
		defer mu.Unlock()
		if told = !over; told {
			l.Status(shard, fmt.Errorf("%w: nothing for %v", ErrAway, lateAnswer))
		}
	})
	return func() bool {
		t.Stop()
		mu.Lock()
		defer mu.Unlock()
		over = true
		return told
	}
}

// lasting reports whether no waiting cures an error.
func lasting(err error) bool {
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
	if err := l.has(shard); err != nil {
		return err
	}
	if caughtUp == nil {
		caughtUp = func(Position) {}
	}
	ctx, over := l.within(ctx)
	defer over()
	first, next, err := l.store.extent(ctx, shard)
	if err != nil {
		return l.ended(err)
	}
	if from == Oldest {
		from = first
	}
	if from < first || from > next {
		return fmt.Errorf("%w: shard %d is to be read from position %d; its log has %d to %d", ErrTrimmed, shard,
			from, first, next-1)
	}
	return l.ended((&reader{
		assembler: newAssembler(l.Job, shard, from), deliver: deliver,
		caughtUp: caughtUp,
	}).run(ctx, l.store))
}

// within is ctx until the log is closed.
func (l *log) within(ctx context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancel(ctx)
	if l.ctx.Err() != nil {
		cancel()
	}
	stop := context.AfterFunc(l.ctx, cancel)
	return ctx, func() { stop(); cancel() }
}

// ended says ErrClosed where a call ended because the log was closed.
func (l *log) ended(err error) error {
	if err != nil && errors.Is(err, context.Canceled) && l.ctx.Err() != nil {
		return ErrClosed
	}
	return err
}

// Extent implements Log.
func (l *log) Extent(ctx context.Context, shard int) (first, next Position, err error) {
	if err := l.has(shard); err != nil {
		return 0, 0, err
	}
	ctx, over := l.within(ctx)
	defer over()
	first, next, err = l.store.extent(ctx, shard)
	return first, next, l.ended(err)
}

// Trim implements Log.
func (l *log) Trim(ctx context.Context, shard int, before Position) error {
	if err := l.has(shard); err != nil {
		return err
	}
	ctx, over := l.within(ctx)
	defer over()
	return l.ended(l.store.trim(ctx, shard, before))
}

// Close implements Log.
func (l *log) Close() error {
	for i := range l.lanes {
		n := &l.lanes[i]
		n.mu.Lock()
		n.closed = true
		n.mu.Unlock()
	}
	l.looks.end()
	l.cancel()
	l.running.Wait()
	return l.store.close()
}
