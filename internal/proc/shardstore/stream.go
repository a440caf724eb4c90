package shardstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// StreamSettings of a Stream never change.
type StreamSettings struct {
	Shard  perdure.ShardID
	Lock   sync.Locker // the shard's: it guards the Stream, and the rows that snapshots are of
	Store  store.Store // of snapshots
	Limits SnapshotLimits
}

// Stream is a shard's stream of the update log, as a server uses it that has the shard. Workers
// append to it what they would send to a head, and every server that holds the shard takes it
// from there, in the same order. So two servers compute the same, and what a server has is
// nowhere but in the stream.
//
// What the head makes of the view, it appends too, and it takes effect when it is read back. A
// shard serves in an epoch once it has read that epoch's Life: all is before that which any
// server has shown in an earlier one.
//
// Entries may come twice: their senders repeat them, and who begins at a snapshot is given some
// that it holds. The applied vector, and facts' numbers, tell.
//
// Methods say so if the caller is to have the shard's lock; the others take it themselves.
type Stream struct {
	StreamSettings
	ctx     context.Context // the shard's life
	cancel  context.CancelFunc
	retired atomic.Bool
	log     updatelog.Log // set before the rows are there, and never again

	// Guarded by the lock.
	resume updatelog.Position // of what is not in the state, the first may be there
	level  bool               // all is that was in the stream when it was opened
	facts  ownFacts
	saves  snapshotPlan
	length streamLength
	wake   chan struct{} // capacity 1: there is a fact to be appended

	newest uint64 // the position of the newest snapshot that there was then; of the goroutine that reads
}

// NewStream makes a stream that is not open yet. It ends with ctx, at the latest.
func NewStream(ctx context.Context, s StreamSettings) *Stream {
	st := &Stream{StreamSettings: s, saves: newSnapshotPlan(s.Limits), wake: make(chan struct{}, 1)}
	st.ctx, st.cancel = context.WithCancel(ctx)
	return st
}

// Retire ends it.
func (st *Stream) Retire() {
	st.retired.Store(true)
	st.cancel()
}

// Ended reports whether the shard is not here any more, or the server ends.
func (st *Stream) Ended() bool { return st.ctx.Err() != nil }

// Level reports whether all was read that was in the stream when it was opened. It needs the lock.
func (st *Stream) Level() bool { return st.level }

// Unread is how many records the rows lack; nil: that is not known. It needs the lock.
func (st *Stream) Unread() *int64 { return st.length.Unread(time.Now()) }

// Behind reports whether the rows lack what is known to be in the stream, or to have been there
// when it was opened. It needs the lock.
func (st *Stream) Behind() bool {
	unread := st.Unread()
	return !st.level || unread != nil && *unread > 0
}

// Lives reports whether a shard may serve in the epoch of a Life, which begins it if it is the
// head's. It needs the lock.
func (st *Stream) Lives(life wire.Frame, head bool) bool {
	if head && st.facts.Begins(life.Epoch) {
		st.Add(life, life.Epoch)
	}
	return st.facts.Life().Epoch == life.Epoch
}

// Add has a fact of an epoch appended. It needs the lock.
func (st *Stream) Add(f wire.Frame, epoch perdure.Epoch) {
	st.facts.Add(f, epoch)
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// Takes reports whether a fact that was read counts; for all see [ownFacts.Take]. It needs the lock.
func (st *Stream) Takes(f *wire.Frame, all bool) bool { return st.facts.Take(f, all) }

// Use says which log it is in, before anything else is asked of it.
func (st *Stream) Use(log updatelog.Log) { st.log = log }

// Open opens it, to be read from a position, once the rows are there that are of that position,
// and returns where its next record will be.
func (st *Stream) Open(from updatelog.Position) (next updatelog.Position, err error) {
	first, next, err := st.log.Extent(st.ctx, int(st.Shard))
	if err != nil {
		return 0, err
	}
	return next, st.Within(from, first, next)
}

// Within refuses a stream of the records from first on, and before next, that is to be read from a position
// which it does not have.
func (st *Stream) Within(from, first, next updatelog.Position) error {
	switch {
	case from > next:
		return fmt.Errorf("the snapshot holds all before record %d, and the log ends before record %d: "+
			"what was in it is gone, or it is another one; "+
			"give the job the log that it had", from, next)
	case from < first:
		return fmt.Errorf("%w: the newest snapshot that can be used holds all before record %d, "+
			"and the log begins at record %d; "+
			"bring the newer snapshots back to %s, or begin the job again", updatelog.ErrTrimmed, from, first, st.Store)
	}
	return nil
}

// Entry makes an entry of the shard's log of one that was read from the stream, and reports whether it counts;
// of an update the body lies where it was read. all: see [ownFacts.Take]. It needs the lock.
func (st *Stream) Entry(record []byte, l *link.Link, state *replica.State, tables int, all bool) (
	e replica.Entry, counts bool, err error,
) {
	var f wire.Frame
	rest, err := wire.Decode(record, &f)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: %d bytes too many", wire.ErrPayload, len(rest))
	}
	if err != nil {
		return e, false, err
	}
	if e, err = l.FromLog(&f, state, tables); err != nil {
		return e, false, err
	}
	switch f.Kind {
	case wire.KindUpdate, wire.KindTick:
		return e, true, nil
	}
	ofWorker := f.Kind == wire.KindAddTable && f.Slot >= 0 // it has updates of the table
	if !ofWorker && !st.Takes(&f, all) {
		return e, false, nil
	}
	e.Frame.Payload = append([]byte(nil), f.Payload...)
	return e, true, nil
}

// Begin says that the rows are there that are of a position. It needs the lock.
func (st *Stream) Begin(from updatelog.Position) {
	st.resume = from
	st.length.Taken(from - 1)
}

// Read reads it from a position on, until it ends.
func (st *Stream) Read(from updatelog.Position, take func(updatelog.Entry) error,
	caughtUp func(updatelog.Position),
) error {
	return st.log.Read(st.ctx, int(st.Shard), from, take, caughtUp)
}

// Taken says that an entry is in the state. It needs the lock.
func (st *Stream) Taken(e *updatelog.Entry) {
	st.resume = e.Resume
	st.length.Taken(e.Position)
	st.saves.Count(e)
}

// CaughtUp says that all that was in the stream is in the state, and reports whether that is so
// for the first time. It needs the lock.
func (st *Stream) CaughtUp(resume updatelog.Position) (first bool) {
	st.length.Taken(resume - 1)
	st.resume = max(st.resume, resume)
	first = !st.level
	st.level = true
	return first
}

// AppendFacts appends what Add was given, one after the other, until it ends. An error says why
// it cannot go on.
func (st *Stream) AppendFacts() error {
	for !st.Ended() {
		st.Lock.Lock()
		f, ok := st.facts.Next()
		st.Lock.Unlock()
		if !ok {
			select {
			case <-st.wake:
			case <-st.ctx.Done():
			}
			continue
		}
		if err := st.appendNow(wire.Append(nil, &f)); err != nil {
			if st.Ended() {
				return nil
			}
			return err
		}
		st.Lock.Lock()
		st.facts.Appended(&f)
		st.Lock.Unlock()
	}
	return nil
}

// appendNow appends an entry, and waits until the log has it.
func (st *Stream) appendNow(b []byte) error {
	done := make(chan error, 1)
	err := st.log.Append(st.ctx, int(st.Shard), [][]byte{b}, func(_ updatelog.Position, err error) { done <- err })
	if err != nil {
		return err
	}
	select {
	case err := <-done:
		return err
	case <-st.ctx.Done():
		return st.ctx.Err()
	}
}

// AskLength asks how long it is, again and again, until it ends.
func (st *Stream) AskLength() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		_, next, err := st.log.Extent(st.ctx, int(st.Shard)) // waits while the log is away
		if err != nil {
			return // the shard is not here any more; or who reads finds it out too
		}
		st.Lock.Lock()
		st.length.Heard(next-1, time.Now())
		st.Lock.Unlock()
		select {
		case <-tick.C:
		case <-st.ctx.Done():
			return
		}
	}
}

// Full notes whether the log waits for room. It needs the lock.
func (st *Stream) Full(full bool) { st.saves.Full(full) }

// Newest is the snapshot that the log may be cut to when it waits for room, unless another one is
// being written. It needs the lock.
func (st *Stream) Newest() (file SnapshotFile, ok bool) { return st.saves.Newest() }

// Trim lets the log forget what a snapshot holds.
func (st *Stream) Trim(file SnapshotFile) error {
	return st.log.Trim(st.ctx, int(st.Shard), updatelog.Position(file.Position))
}
