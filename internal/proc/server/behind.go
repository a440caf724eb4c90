package server

import (
	"errors"
	"time"

	"github.com/perdure/perdure"
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

// goOn leaves the cut that the shard stands at, if it need not stand, and reports
// whether it did. It needs sh.mu.
func (sh *shard) goOn() bool {
	if !sh.traits.Behind() || sh.writing > 0 || !sh.intake.AtCut() {
		return false
	}
	sh.writing = sh.intake.MinClock()
	sh.leaveCut(sh.writing)
	if sh.s.cfg.Weakened.Cuts {
		sh.applyToCut()
	}
	if sh.place.config.Head {
		w := sh.beginWriting(sh.writing)
		sh.behind = true
		sh.s.wg.Go(func() { sh.saveBehind(w) })
	}
	return true
}

// writing is a segment that is being written from snapshots of its tables.
type writing struct {
	sh    *shard
	seg   *checkpoint.Segment
	rows  []*table.Snapshot // guarded by sh.mu, as what they are of
	left  int64             // bytes of them that are not read yet
	turn  bool              // it may read
	room  []byte
	began time.Time
}

// errNotNeeded means that nobody needs a segment any more.
var errNotNeeded = errors.New("server: the shard has moved, or the server ends")

// mostKept is how many segments a checkpoint of a shard is made of at most.
const mostKept = 32

// beginWriting begins to write the shard as it is now, at a cut. The segment has the rows
// that have changed since the last one; but all where that is no more than twice the
// work, and where what would be superseded in the files came to more than a whole
// segment. It needs sh.mu.
func (sh *shard) beginWriting(cut perdure.Clock) *writing {
	var changed, all, old int64
	for _, p := range sh.parts {
		c, a := p.ChangedBytes()
		changed, all = changed+c, all+a
	}
	for _, f := range sh.kept {
		old += f.Bytes
	}
	if len(sh.kept) == mostKept || (2*changed >= all || old+changed > 2*all) && !sh.s.cfg.Follow {
		sh.kept = nil
	}
	w := &writing{sh: sh, seg: sh.segment(cut), room: make([]byte, behindPiece), began: time.Now()}
	if n := len(sh.kept); n > 0 {
		w.seg.Follows = &sh.kept[n-1]
	}
	for _, p := range sh.parts {
		rows := p.SnapshotChanged(len(sh.kept) == 0)
		w.rows, w.left = append(w.rows, rows), w.left+rows.Bytes()
		w.seg.Tables = append(w.seg.Tables, checkpoint.TableRows{
			Spec: p.Spec, First: int64(p.First),
			Stream: &checkpoint.Stream{Rows: int64(rows.Rows()), Runs: rows.Runs(), Next: func() ([]byte, error) { return w.next(rows) }},
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
	if w.left -= int64(len(piece)); w.left <= 0 {
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
	for _, rows := range w.rows {
		if rows.Close(); err != nil {
			rows.Undo()
		}
	}
	seg := described(w.seg.Cut, ref)
	if err == nil {
		for _, f := range sh.kept {
			seg.Base = append(seg.Base, perdure.SegmentFile(f))
		}
		sh.kept = append(sh.kept, ref.Self())
		sh.saveTime, sh.saveBytes = time.Since(w.began), ref.Bytes
	}
	return seg, err
}

// saveBehind writes a cut while the shard goes on. What cannot be written now is said, and
// waited for at the next cut.
func (sh *shard) saveBehind(w *writing) {
	seg, err := w.write()
	if sh.retired() || sh.s.ctx.Err() != nil {
		return
	}
	if err == nil {
		sh.saved(seg)
		return
	}
	sh.s.cfg.Log.Error("cannot write a checkpoint segment; training goes on to the next cut", "shard", sh.id, "err", err)
	sh.trouble(err.Error())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.behind, sh.pumped = false, false // it may stand there already
	sh.carryOut()
}
