// Package shardstore keeps one shard's rows outside the server's memory: as segments of checkpoints ([Saver]), and
// as its stream of the update log with snapshots ([Stream]).
//
// A Saver writes rows and reads them back: from where they lie while the shard stands at a cut, or from an image
// of them while training continues. It decides nothing about cuts: it is given a [SegmentCut] to write, with the
// state whose rows these are, and says what became of it.
//
// A Stream reads entries, appends, and writes snapshots. What has to be done is decided by [ownFacts],
// [snapshotPlan] and [streamLength], which do nothing themselves: which facts of the stream count, which have to
// be appended, when a snapshot is due so that the log can be cut, and how far the shard is behind.
//
// Both have the shard's lock, under which rows are read, and no way to the shard. Methods say so if the caller has
// to hold that lock; the others take it themselves.
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
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/store"
)

// What cannot be written, or read, is tried again this number of times before it is given up; in a store that is
// full or away until that has passed.
const (
	tries = 10
	Pause = time.Second // between two
)

// pieceBytes is how much is copied at once while the shard is locked, and then written: so little
// that nobody waits for it, and that it is in the processor's cache still when it is summed and
// written.
const pieceBytes = 256 << 10

// errNotNeeded means that nobody needs a segment any more.
var errNotNeeded = errors.New("segments: the shard has moved, or the server ends")

// SaverSettings of a Saver never change.
type SaverSettings struct {
	Job   *perdure.JobSpec
	Shard perdure.ShardID
	Lock  sync.Locker // the shard's: it guards the rows that are written, and what went wrong
	Store store.Store
	Turn  chan struct{} // capacity 1, the server's: in it while a shard's rows are read to be written
	Log   *slog.Logger
	Tell  func() // the status has changed: the coordinator is to hear of it
	Count *SaveCounts
}

// SaveCounts are what was written of all shards of a server since it began.
type SaveCounts struct{ Saves, Failures, Bytes, Nanoseconds atomic.Int64 }

// Note counts what was written, or could not be.
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
	ctx    context.Context // the shard's life, within the server's
	retire context.CancelFunc

	// Guarded by the lock.
	problem string        // why the disk cannot be written, or read; "": it can
	took    time.Duration // the last segment, to be written
	bytes   int64         // of it
	rounds  uint64        // of rows that were saved by themselves, so far
}

// NewSaver makes a saver that ends with ctx, at the latest.
func NewSaver(ctx context.Context, s SaverSettings) *Saver {
	sv := &Saver{SaverSettings: s}
	sv.ctx, sv.retire = context.WithCancel(ctx)
	return sv
}

// Retire ends it: nobody needs what it writes any more.
func (s *Saver) Retire() { s.retire() }

// Over reports whether nobody needs what it writes any more.
func (s *Saver) Over() bool { return s.ctx.Err() != nil }

// Insist does something with the store until it succeeds, or it is over. Of each try that fails, the
// log and the coordinator hear: what says what cannot be done, and what that means.
func (s *Saver) Insist(what string, f func() error) error {
	if s.Over() {
		return nil
	}
	try := 0
	over := func(error) bool { return s.Over() }
	return disk.Retry{Tries: tries, Pause: Pause, Over: over, Passes: store.Passes}.Do(s.ctx, func() error {
		err := f()
		if try++; err != nil && !s.Over() {
			s.Log.Error(what, "shard", s.Shard, "try", try, "err", err)
			s.Fails(err)
		}
		return err
	})
}

// Await does f, which reads what is there, and again for as long as it may pass that it cannot.
func (s *Saver) Await(what string, f func() error) error {
	var final error
	err := s.Insist(what, func() error {
		final = nil
		err := f()
		if err != nil && !store.Passes(err) {
			final = err
			return nil
		}
		return err
	})
	return cmp.Or(final, err)
}

// Fails notes why the disk cannot be written, or read, and has the coordinator told.
func (s *Saver) Fails(why error) {
	s.Lock.Lock()
	s.problem = why.Error()
	s.Lock.Unlock()
	s.Tell()
}

// Works notes that it can, and reports whether that is new. It needs the lock.
func (s *Saver) Works() (news bool) {
	news = s.problem != ""
	s.problem = ""
	return news
}

// Status adds to a status how the shard gets on with its disk. It needs the lock.
func (s *Saver) Status(st *words.ShardStatus) {
	st.Problem, st.SaveSeconds, st.SaveBytes = s.problem, s.took.Seconds(), s.bytes
}

// segment describes a shard as it is at a cut, without its rows.
func (s *Saver) segment(n link.Name, cut perdure.Clock, st *replica.State) *checkpoint.Segment {
	return &checkpoint.Segment{
		Job: s.Job.ID, Generation: n.Generation, Epoch: n.Epoch, Cut: cut,
		Shard: n.Shard, Seed: s.Job.Seed, Seq: st.Seq(),
		Applied: append([]perdure.Clock(nil), st.Applied()...),
		States:  append([][]byte(nil), st.States()...),
	}
}

// Whole describes a shard as it is, with the rows where they lie: nothing is copied, and they must
// not change until it is written. It needs the lock.
func (s *Saver) Whole(n link.Name, st *replica.State) *checkpoint.Segment {
	seg := s.segment(n, st.MinClock(), st)
	for _, p := range st.Parts() {
		seg.Tables = append(seg.Tables, checkpoint.TableRows{Spec: p.Spec, First: int64(p.First), Image: p.Image()})
	}
	return seg
}

// write writes a segment, and notes how long it took.
func (s *Saver) write(seg *checkpoint.Segment, began time.Time) (checkpoint.SegmentRef, error) {
	ref, err := checkpoint.WriteSegment(s.Store, seg)
	if !s.Over() && s.Count != nil {
		s.Count.Note(ref.Bytes, time.Since(began), err)
	}
	if err == nil {
		s.Lock.Lock()
		s.took, s.bytes = time.Since(began), ref.Bytes
		s.Lock.Unlock()
	}
	return ref, err
}

// described says of a segment what others need to know.
func described(cut perdure.Clock, ref checkpoint.SegmentRef) words.Segment {
	seg := words.Segment{Cut: cut, File: ref.File, Bytes: ref.Bytes, CRC: ref.CRC, Seq: ref.Seq}
	for _, f := range ref.States {
		seg.States = append(seg.States, words.SegmentFile(f))
	}
	return seg
}
