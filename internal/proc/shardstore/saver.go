// Package shardstore stores one shard's rows outside of the server's memory: in segments of checkpoints ([Saver]), and
// in the update log with snapshots ([Stream]).
//
// A Saver writes and reads rows. It writes them directly from table memory while the shard is paused at a cut, or from
// an image while training continues. It does not decide when a cut is saved. Its caller passes a [SegmentCut] with its
// state, and receives the result.
//
// A Stream reads the update log, appends to it, and writes snapshots. Three types without side effects make its
// decisions: [factQueue] decides which facts in the log count and which must be appended, [snapshotPlan] when a
// snapshot is due so that the log can be trimmed, and [streamLength] how many records the shard lacks.
//
// Both types have the shard's lock, under which rows are read, but no reference to the shard. Methods whose caller must
// hold the lock say so; all others acquire it.
package shardstore

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// Failed writes and reads are tried this number of times. If the store is full or unavailable, they are tried without
// limit.
const (
	tries      = 10
	RetryPause = time.Second // between two tries
)

// pieceBytes is how much is copied at a time while the shard is locked, and then written. It is small, so that the lock
// is held briefly and the copy is still in the processor's cache when it is checksummed and written.
const pieceBytes = 256 << 10

// errNotNeeded means that a segment is no longer needed.
var errNotNeeded = errors.New("segments: the shard has moved or the server is shutting down")

// SaverSettings are the settings of a Saver. They are immutable.
type SaverSettings struct {
	Job     *perdure.JobSpec
	Shard   perdure.ShardID
	Lock    sync.Locker // the shard's lock, which guards the rows and the last error
	Store   store.Store
	ReadSem chan struct{} // the server's, capacity 1: held while a shard's rows are read for writing
	Log     *slog.Logger
	Notify  func() // called when the status for the coordinator has changed
	Counts  *SaveCounts
}

// SaveCounts counts the writes of all shards of a server.
type SaveCounts struct{ Saves, Failures, Bytes, Nanoseconds atomic.Int64 }

// Note counts a write and its result.
func (c *SaveCounts) Note(bytes int64, took time.Duration, err error) {
	if err != nil {
		c.Failures.Add(1)
		return
	}
	c.Saves.Add(1)
	c.Bytes.Add(bytes)
	c.Nanoseconds.Add(int64(took))
}

// Saver writes one shard's segments.
type Saver struct {
	SaverSettings
	ctx    context.Context // ends with the shard or the server
	retire context.CancelFunc

	// The lock guards the fields below.
	problem  string        // why the store cannot be written or read; "" if it can
	saveTime time.Duration // the time taken to write the last segment
	bytes    int64         // the size of that segment
	rounds   uint64        // number of rounds of separately saved rows
}

// NewSaver returns a saver that ends with ctx or Retire.
func NewSaver(ctx context.Context, s SaverSettings) *Saver {
	sv := &Saver{SaverSettings: s}
	sv.ctx, sv.retire = context.WithCancel(ctx)
	return sv
}

// Retire ends the saver, because its shard has moved.
func (s *Saver) Retire() { s.retire() }

// Stopped reports whether the saver has ended.
func (s *Saver) Stopped() bool { return s.ctx.Err() != nil }

// Retry retries f, which uses the store, until it succeeds or the saver ends. It logs and reports each failure. what
// describes what failed and the consequence.
func (s *Saver) Retry(what string, f func() error) error {
	if s.Stopped() {
		return nil
	}
	try := 0
	over := func(error) bool { return s.Stopped() }
	return disk.Retry{MaxAttempts: tries, Pause: RetryPause, Permanent: over, Retryable: store.Retryable}.Do(
		s.ctx,
		func() error {
			err := f()
			if try++; err != nil && !s.Stopped() {
				s.Log.Error(what, "shard", s.Shard, "try", try, "err", err)
				s.SetProblem(err)
			}
			return err
		},
	)
}

// RetryTemporary retries f, which reads from the store, as long as its error may be temporary.
func (s *Saver) RetryTemporary(what string, f func() error) error {
	var final error
	err := s.Retry(what, func() error {
		final = nil
		err := f()
		if err != nil && !store.Retryable(err) {
			final = err
			return nil
		}
		return err
	})
	return cmp.Or(final, err)
}

// SetProblem records why the store cannot be written or read, and triggers a status report.
func (s *Saver) SetProblem(why error) {
	s.Lock.Lock()
	s.problem = why.Error()
	s.Lock.Unlock()
	s.Notify()
}

// ClearProblemLocked records that the store works, and reports whether that is a change. The caller must hold the lock.
func (s *Saver) ClearProblemLocked() (news bool) {
	news = s.problem != ""
	s.problem = ""
	return news
}

// AddStatusLocked adds the saver's state to a shard's status. The caller must hold the lock.
func (s *Saver) AddStatusLocked(st *protocol.ShardStatus) {
	st.Problem, st.SaveSeconds, st.SaveBytes = s.problem, s.saveTime.Seconds(), s.bytes
}

// segment describes a shard at a cut, without its rows.
func (s *Saver) segment(n chain.Fence, cut perdure.Clock, st *replica.State) *checkpoint.Segment {
	return &checkpoint.Segment{
		Job: s.Job.ID, Generation: n.Generation, Epoch: n.Epoch, Cut: cut,
		Shard: n.Shard, Seed: s.Job.Seed, Seq: st.Seq(),
		Applied: append([]perdure.Clock(nil), st.Applied()...),
		States:  append([][]byte(nil), st.States()...),
	}
}

// SegmentLocked describes a shard with its current rows, which are not copied and must not change until the segment is
// written. The caller must hold the lock.
func (s *Saver) SegmentLocked(n chain.Fence, st *replica.State) *checkpoint.Segment {
	seg := s.segment(n, st.MinClock(), st)
	for _, p := range st.Parts() {
		seg.Tables = append(seg.Tables, checkpoint.TableRows{Spec: p.Spec, First: int64(p.First), Image: p.Image()})
	}
	return seg
}

// write writes a segment and records the time taken.
func (s *Saver) write(seg *checkpoint.Segment, began time.Time) (checkpoint.SegmentRef, error) {
	ref, err := checkpoint.WriteSegment(s.Store, seg)
	if !s.Stopped() && s.Counts != nil {
		s.Counts.Note(ref.Bytes, time.Since(began), err)
	}
	if err == nil {
		s.Lock.Lock()
		s.saveTime, s.bytes = time.Since(began), ref.Bytes
		s.Lock.Unlock()
	}
	return ref, err
}

// segmentOf returns the description of a segment for the coordinator.
func segmentOf(cut perdure.Clock, ref checkpoint.SegmentRef) protocol.Segment {
	seg := protocol.Segment{Cut: cut, File: ref.File, Bytes: ref.Bytes, CRC: ref.CRC, Seq: ref.Seq}
	for _, f := range ref.States {
		seg.States = append(seg.States, protocol.SegmentFile(f))
	}
	return seg
}
