// Package segments is how one shard's rows come onto a disk, as a segment of a checkpoint, and
// back. A [Saver] writes them, from where they lie while the shard stands at a cut, or from an
// image of them while it goes on, and knows how the shard gets on with its disk.
//
// It decides nothing about cuts. It is given rows, and says what it has written: who called it
// tells the replica. It has the shard's lock, under which rows are read, and no way to the shard.
// Methods say so if the caller is to have that lock; the others take it themselves.
package segments

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/link"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/table"
)

// What cannot be written, or read, is tried again this number of times before it is given up; on a full
// disk until there is room.
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

// Settings of a Saver never change.
type Settings struct {
	Job  *perdure.JobSpec
	Lock sync.Locker // the shard's: it guards the rows that are written, and what went wrong
	Disk disk.FS
	Dir  string
	Turn chan struct{} // capacity 1, the server's: in it while a shard's rows are read to be written
}

// Saver writes one shard's segments.
type Saver struct {
	Settings
	ctx     context.Context // the server's life
	retired atomic.Bool     // the shard's is over

	// Guarded by the lock.
	problem string        // why the disk cannot be written, or read; "": it can
	took    time.Duration // the last segment, to be written
	bytes   int64         // of it
}

// New makes a saver that ends with ctx, at the latest.
func New(ctx context.Context, s Settings) *Saver { return &Saver{Settings: s, ctx: ctx} }

// Retire ends it: nobody needs what it writes any more.
func (s *Saver) Retire() { s.retired.Store(true) }

// Over reports whether nobody needs what it writes any more.
func (s *Saver) Over() bool { return s.retired.Load() || s.ctx.Err() != nil }

// Insist does something with the disk until it succeeds, or it is over. failed hears of each try
// that fails.
func (s *Saver) Insist(f func() error, failed func(try int, err error)) error {
	if s.Over() {
		return nil
	}
	try := 0
	over := func(error) bool { return s.Over() }
	return disk.Retry{Tries: tries, Pause: Pause, Over: over}.Do(s.ctx, func() error {
		err := f()
		if try++; err != nil {
			failed(try, err)
		}
		return err
	})
}

// Fails notes why the disk cannot be written, or read. It needs the lock.
func (s *Saver) Fails(why error) { s.problem = why.Error() }

// Works notes that it can, and reports whether that is new. It needs the lock.
func (s *Saver) Works() (news bool) {
	news = s.problem != ""
	s.problem = ""
	return news
}

// Status adds to a status how the shard gets on with its disk. It needs the lock.
func (s *Saver) Status(st *perdure.ShardStatus) {
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

// Write writes a segment that Whole has described, of a cut.
func (s *Saver) Write(seg *checkpoint.Segment, cut perdure.Clock) (perdure.Segment, error) {
	ref, err := s.write(seg, time.Now())
	return described(cut, ref), err
}

// write writes a segment, and notes how long it took.
func (s *Saver) write(seg *checkpoint.Segment, began time.Time) (checkpoint.SegmentRef, error) {
	ref, err := checkpoint.WriteSegment(s.Disk, s.Dir, seg)
	if err == nil {
		s.Lock.Lock()
		s.took, s.bytes = time.Since(began), ref.Bytes
		s.Lock.Unlock()
	}
	return ref, err
}

// described says of a segment what others need to know.
func described(cut perdure.Clock, ref checkpoint.SegmentRef) perdure.Segment {
	return perdure.Segment{Cut: cut, File: ref.File, Bytes: ref.Bytes, CRC: ref.CRC, Seq: ref.Seq}
}

// Writing is a segment that is being written from an image of its rows.
type Writing struct {
	by    *Saver
	Image *replica.Image // guarded by the lock, as what it is of
	seg   *checkpoint.Segment
	left  int64 // bytes of it that are not read yet
	turn  bool  // it may read
	room  []byte
	began time.Time
}

// Begin begins to write an image. It needs the lock.
func (s *Saver) Begin(n link.Name, m *replica.Image, st *replica.State) *Writing {
	seg := s.segment(n, m.Cut, st)
	seg.Seq, seg.Applied, seg.States = m.Seq, m.Applied, m.States
	w := &Writing{by: s, Image: m, seg: seg, room: make([]byte, pieceBytes), began: time.Now()}
	if n := len(m.Follows); n > 0 {
		last := checkpoint.FileRef(m.Follows[n-1])
		seg.Follows = &last
	}
	for t, rows := range m.Rows {
		w.left += rows.Bytes()
		next := func() ([]byte, error) { return w.next(rows) }
		seg.Tables = append(seg.Tables, checkpoint.TableRows{
			Spec: m.Specs[t], First: int64(m.First[t]),
			Stream: &checkpoint.Stream{Rows: int64(rows.Rows()), Runs: rows.Runs(), Next: next},
		})
	}
	return w
}

// next returns a table's next rows.
func (w *Writing) next(rows *table.Snapshot) ([]byte, error) {
	if w.by.Over() {
		return nil, errNotNeeded
	}
	if err := w.takeTurn(); err != nil {
		return nil, err
	}
	w.by.Lock.Lock()
	defer w.by.Lock.Unlock()
	piece, live := rows.Next(len(w.room), func(int) []byte { return w.room })
	if live {
		piece = w.room[:copy(w.room, piece)] // it may change before it is written
	}
	if w.left -= int64(len(piece)); w.left <= 0 {
		w.endTurn()
	}
	return piece, nil
}

// takeTurn waits until no other shard of the server reads its rows in order to write them, so that
// they take less of the processors from training at a time. They sync their files when they like.
func (w *Writing) takeTurn() error {
	if w.turn {
		return nil
	}
	select {
	case w.by.Turn <- struct{}{}:
		w.turn = true
		return nil
	case <-w.by.ctx.Done():
		return errNotNeeded
	}
}

func (w *Writing) endTurn() {
	if w.turn {
		w.turn = false
		<-w.by.Turn
	}
}

// Write writes the segment, and says what it is to the coordinator, and to the segments that
// follow it.
func (w *Writing) Write() (seg perdure.Segment, file perdure.SegmentFile, err error) {
	ref, err := w.by.write(w.seg, w.began)
	w.endTurn()
	if err != nil {
		return seg, file, err
	}
	seg = described(w.seg.Cut, ref)
	seg.Base = w.Image.Follows
	return seg, perdure.SegmentFile(ref.Self()), nil
}
