package server

import (
	"errors"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
)

// A checkpoint in the background: at a cut every replica goes on at once, and the head
// writes what the rows were from snapshots of its tables. Where the log says nothing of a
// cut, all replicas go on at the same place in it all the same: when all updates of
// earlier clocks are applied, and the cut before is known, by the log, to be saved. So no
// shard is ever more than one cut ahead of what it has saved.

// behindPiece is how much is copied at once while the shard is locked, and then written:
// so little that nobody waits for it, and that it is in the processor's cache still when
// it is summed and written.
const behindPiece = 256 << 10

// writing is a segment that is being written from an image of its rows.
type writing struct {
	sh    *shard
	image *replica.Image // guarded by sh.mu, as what it is of
	seg   *checkpoint.Segment
	left  int64 // bytes of it that are not read yet
	turn  bool  // it may read
	room  []byte
	began time.Time
}

// errNotNeeded means that nobody needs a segment any more.
var errNotNeeded = errors.New("server: the shard has moved, or the server ends")

// beginWriting begins to write an image. It needs sh.mu.
func (sh *shard) beginWriting(m *replica.Image) *writing {
	seg := sh.segment(m.Cut)
	seg.Seq, seg.Applied, seg.States = m.Seq, m.Applied, m.States
	w := &writing{sh: sh, image: m, seg: seg, room: make([]byte, behindPiece), began: time.Now()}
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
func (w *writing) next(rows *table.Snapshot) ([]byte, error) {
	sh := w.sh
	if sh.retired() || sh.s.ctx.Err() != nil {
		return nil, errNotNeeded
	}
	if err := w.takeTurn(); err != nil {
		return nil, err
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	piece, live := rows.Next(len(w.room), func(int) []byte { return w.room })
	if live {
		piece = w.room[:copy(w.room, piece)] // it may change before it is written
	}
	w.left -= int64(len(piece))
	if w.left <= 0 {
		w.endTurn()
	}
	return piece, nil
}

// takeTurn waits until no other shard of the server reads its rows in order to write
// them, so that they take less of the processors from training at a time. They sync their
// files when they like.
func (w *writing) takeTurn() error {
	if w.turn {
		return nil
	}
	select {
	case w.sh.s.reading <- struct{}{}:
		w.turn = true
		return nil
	case <-w.sh.s.ctx.Done():
		return errNotNeeded
	}
}

func (w *writing) endTurn() {
	if w.turn {
		w.turn = false
		<-w.sh.s.reading
	}
}

// write writes the segment, and says what it is to the coordinator. After an error its
// rows count as changed still.
func (w *writing) write() (perdure.Segment, error) {
	sh := w.sh
	ref, err := checkpoint.WriteSegment(sh.s.cfg.Disk, sh.s.cfg.CheckpointDir, w.seg)
	w.endTurn()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	seg := described(w.seg.Cut, ref)
	if err != nil {
		sh.rep.State.Unwritten(w.image)
		return seg, err
	}
	seg.Base = w.image.Follows
	sh.rep.State.Written(w.image, perdure.SegmentFile(ref.Self()))
	sh.disk.saveTime, sh.disk.saveBytes = time.Since(w.began), ref.Bytes
	return seg, nil
}

// saveBehind writes a cut while the shard goes on. What cannot be written now is said, and
// waited for at the next cut.
func (sh *shard) saveBehind(w *writing) {
	seg, err := w.write()
	if sh.retired() || sh.s.ctx.Err() != nil {
		return
	}
	if err == nil {
		sh.passCut(seg)
		return
	}
	sh.s.cfg.Log.Error("cannot write a checkpoint segment; training goes on to the next cut", "shard", sh.id, "err",
		err)
	sh.trouble(err.Error())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.rep.GiveUpSaving() // it may stand at the next one already
	sh.advance()
}
