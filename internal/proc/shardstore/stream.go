package shardstore

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/updatelog"
	"github.com/perdure/perdure/internal/data/wire"
)

// StreamSettings are the settings of a Stream. They are immutable.
type StreamSettings struct {
	Shard  perdure.ShardID
	Lock   sync.Locker // the shard's lock, which guards the Stream and the rows
	Store  store.Store // for snapshots
	Limits SnapshotLimits
}

// Stream is a shard's part of the update log, used by a server that holds the shard. Workers append their updates to
// it, and every server that holds the shard reads the same updates in the same order. So all servers compute the same
// state, and that state is determined by the log alone.
//
// The head also appends facts that follow from the view, and they take effect when they are read back. A shard serves
// in an epoch once it has read that epoch's Life. At that point it has read every update that any server has shown in
// earlier epochs.
//
// Entries may occur twice: senders repeat them, and a reader that starts from a snapshot may receive entries that the
// snapshot contains. They are recognized by the applied vector and by the numbers of facts.
//
// Methods whose caller must hold the shard's lock say so; all others acquire it.
type Stream struct {
	StreamSettings
	ctx     context.Context // ends with the shard or the server
	cancel  context.CancelFunc
	retired atomic.Bool
	log     updatelog.Log // set once, before the rows are loaded

	// The lock guards the fields below.
	resume   updatelog.Position // no entry before this position is missing in the state
	caughtUp bool               // the state has all entries that were in the log when it was opened
	facts    factQueue
	saves    snapshotPlan
	length   streamLength
	wake     chan struct{} // capacity 1: there is a fact to append

	newest uint64 // position of the newest snapshot at the last listing; owned by the reading goroutine
}

// NewStream returns a stream that is not open yet. It ends with ctx or Retire.
func NewStream(ctx context.Context, s StreamSettings) *Stream {
	st := &Stream{StreamSettings: s, saves: newSnapshotPlan(s.Limits), wake: make(chan struct{}, 1)}
	st.ctx, st.cancel = context.WithCancel(ctx)
	return st
}

// Retire ends the stream, because its shard has moved.
func (st *Stream) Retire() {
	st.retired.Store(true)
	st.cancel()
}

// Stopped reports whether the shard has been retired or the server is ending.
func (st *Stream) Stopped() bool { return st.ctx.Err() != nil }

// IsCaughtUpLocked reports whether all entries that were in the log when it was opened have been read. The caller must
// hold the lock.
func (st *Stream) IsCaughtUpLocked() bool { return st.caughtUp }

// UnreadLocked returns how many records the rows lack, or nil if that is unknown. The caller must hold the lock.
func (st *Stream) UnreadLocked() *int64 { return st.length.Unread(time.Now()) }

// BehindLocked reports whether the rows lack entries that are known to be in the log, or may have been there when it
// was opened. The caller must hold the lock.
func (st *Stream) BehindLocked() bool {
	unread := st.UnreadLocked()
	return !st.caughtUp || unread != nil && *unread > 0
}

// ServesLocked reports whether the shard may serve in the epoch of a Life. The head starts that epoch. The caller must
// hold the lock.
func (st *Stream) ServesLocked(life wire.Frame, head bool) bool {
	if head && st.facts.StartEpoch(life.Epoch) {
		st.AddLocked(life, life.Epoch)
	}
	return st.facts.Life().Epoch == life.Epoch
}

// AddLocked queues a fact of an epoch for appending. The caller must hold the lock.
func (st *Stream) AddLocked(f wire.Frame, epoch perdure.Epoch) {
	st.facts.Add(f, epoch)
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

// AcceptsLocked reports whether a fact that was read counts. For all see [factQueue.Accept]. The caller must hold the
// lock.
func (st *Stream) AcceptsLocked(f *wire.Frame, all bool) bool { return st.facts.Accept(f, all) }

// SetLog sets the log. It must be called before all methods that use the log.
func (st *Stream) SetLog(log updatelog.Log) { st.log = log }

// Open prepares reading from the position of the loaded rows, and returns the position of the log's next record.
func (st *Stream) Open(from updatelog.Position) (next updatelog.Position, err error) {
	first, next, err := st.log.Extent(st.ctx, int(st.Shard))
	if err != nil {
		return 0, err
	}
	return next, st.CheckRange(from, first, next)
}

// CheckRange returns an error if reading is to start at a position outside of the log, which has records from first up
// to but not including next.
func (st *Stream) CheckRange(from, first, next updatelog.Position) error {
	switch {
	case from > next:
		return fmt.Errorf("the snapshot contains all records before %d, but the log ends before record %d: records "+
			"were lost, or this is a different log; use the job's original log", from, next)
	case from < first:
		return fmt.Errorf("%w: the newest usable snapshot contains all records before %d, "+
			"but the log starts at record %d; "+
			"restore the newer snapshots in %s, or start the job again", updatelog.ErrTrimmed, from, first, st.Store)
	}
	return nil
}

// EntryLocked converts a record to an entry of the shard's log and reports whether it counts. The body of an update
// shares memory with the record. For all see [factQueue.Accept]. The caller must hold the lock.
func (st *Stream) EntryLocked(record []byte, l *chain.Link, state *replica.State, tables int, all bool) (
	e replica.Entry, counts bool, err error,
) {
	var f wire.Frame
	rest, err := wire.Decode(record, &f)
	if err == nil && len(rest) > 0 {
		err = fmt.Errorf("%w: %d trailing bytes", wire.ErrPayload, len(rest))
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
	ofWorker := f.Kind == wire.KindAddTable && f.Slot >= 0 // the slot has updates of the table
	if !ofWorker && !st.AcceptsLocked(&f, all) {
		return e, false, nil
	}
	e.Frame.Payload = append([]byte(nil), f.Payload...)
	return e, true, nil
}

// BeginLocked records that the rows of a position are loaded. The caller must hold the lock.
func (st *Stream) BeginLocked(from updatelog.Position) {
	st.resume = from
	st.length.SetApplied(from - 1)
}

// Read reads the log from a position until the stream ends.
func (st *Stream) Read(from updatelog.Position, take func(updatelog.Entry) error,
	caughtUp func(updatelog.Position),
) error {
	return st.log.Read(st.ctx, int(st.Shard), from, take, caughtUp)
}

// AppliedLocked records that an entry is in the state. The caller must hold the lock.
func (st *Stream) AppliedLocked(e *updatelog.Entry) {
	st.resume = e.Resume
	st.length.SetApplied(e.Position)
	st.saves.Count(e)
}

// CaughtUpLocked records that all entries in the log are in the state, and reports whether this is the first time. The
// caller must hold the lock.
func (st *Stream) CaughtUpLocked(resume updatelog.Position) (first bool) {
	st.length.SetApplied(resume - 1)
	st.resume = max(st.resume, resume)
	first = !st.caughtUp
	st.caughtUp = true
	return first
}

// AppendFacts appends the queued facts, one after the other, until the stream ends. It returns an error if it cannot
// continue.
func (st *Stream) AppendFacts() error {
	for !st.Stopped() {
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
			if st.Stopped() {
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

// appendNow appends an entry and waits until the log has it.
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

// PollLength asks for the length of the log at regular intervals until the stream ends.
func (st *Stream) PollLength() {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for {
		_, next, err := st.log.Extent(st.ctx, int(st.Shard)) // waits while the log is unavailable
		if err != nil {
			return // the shard has been retired, or the reader reports the error
		}
		st.Lock.Lock()
		st.length.SetLast(next-1, time.Now())
		st.Lock.Unlock()
		select {
		case <-tick.C:
		case <-st.ctx.Done():
			return
		}
	}
}

// SetFullLocked records whether the log is full. The caller must hold the lock.
func (st *Stream) SetFullLocked(full bool) { st.saves.SetFull(full) }

// NewestLocked returns the snapshot to which a full log may be trimmed, unless another one is being written. The caller
// must hold the lock.
func (st *Stream) NewestLocked() (file SnapshotFile, ok bool) { return st.saves.Newest() }

// Trim removes the log records that a snapshot contains.
func (st *Stream) Trim(file SnapshotFile) error {
	return st.log.Trim(st.ctx, int(st.Shard), updatelog.Position(file.Position))
}
