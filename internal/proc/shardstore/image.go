package shardstore

import (
	"time"

	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
)

// writing is a segment that is being written from an image of its rows.
type writing struct {
	by    *Saver
	image *replica.Image // guarded by the lock, like its tables
	seg   *checkpoint.Segment
	left  int64 // bytes that have not been read yet
	turn  bool  // it holds the turn to read
	room  []byte
	began time.Time
}

// begin prepares writing an image. The caller must hold the lock.
func (s *Saver) begin(n chain.Fence, m *replica.Image, st *replica.State) *writing {
	seg := s.segment(n, m.Cut, st)
	seg.Seq, seg.Applied, seg.States = m.Seq, m.Applied, m.States
	w := &writing{by: s, image: m, seg: seg, room: make([]byte, pieceBytes), began: time.Now()}
	if n := len(m.Base); n > 0 {
		last := checkpoint.FileRef(m.Base[n-1])
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

// next returns the next rows of a table.
func (w *writing) next(rows *table.Snapshot) ([]byte, error) {
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
		piece = w.room[:copy(w.room, piece)] // the rows may change before they are written
	}
	if w.left -= int64(len(piece)); w.left <= 0 {
		w.endTurn()
	}
	return piece, nil
}

// takeTurn waits until no other shard of the server reads its rows for writing, so that saving takes less processor
// time from training at any moment. Files may be synced concurrently.
func (w *writing) takeTurn() error {
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

func (w *writing) endTurn() {
	if w.turn {
		w.turn = false
		<-w.by.Turn
	}
}

// write writes the segment and returns its description. After an error, its rows still count as changed.
func (w *writing) write(st *replica.State) (seg words.Segment, err error) {
	ref, err := w.by.write(w.seg, w.began)
	w.endTurn()
	w.by.Lock.Lock()
	defer w.by.Lock.Unlock()
	if err != nil {
		st.Unwritten(w.image)
		return seg, err
	}
	seg = described(w.seg.Cut, ref)
	seg.Base = w.image.Base
	st.Written(w.image, words.SegmentFile(ref.Self()))
	return seg, nil
}
