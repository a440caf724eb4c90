package shardstore

import (
	"time"

	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
)

// imageWriter is a segment that is being written from an image of its rows.
type imageWriter struct {
	saver      *Saver
	image      *replica.Image // guarded by the lock, like its tables
	seg        *checkpoint.Segment
	bytesLeft  int64 // bytes that have not been read yet
	hasReadSem bool  // it holds the Saver's ReadSem
	room       []byte
	began      time.Time
}

// newImageWriterLocked prepares writing an image. The caller must hold the lock.
func (s *Saver) newImageWriterLocked(n chain.Fence, m *replica.Image, st *replica.State) *imageWriter {
	seg := s.segment(n, m.Cut, st)
	seg.Seq, seg.Applied, seg.States = m.Seq, m.Applied, m.States
	w := &imageWriter{saver: s, image: m, seg: seg, room: make([]byte, pieceBytes), began: time.Now()}
	if n := len(m.Base); n > 0 {
		last := checkpoint.FileRef(m.Base[n-1])
		seg.Follows = &last
	}
	for t, rows := range m.Rows {
		w.bytesLeft += rows.Bytes()
		next := func() ([]byte, error) { return w.next(rows) }
		seg.Tables = append(seg.Tables, checkpoint.TableRows{
			Spec: m.Specs[t], First: int64(m.First[t]),
			Stream: &checkpoint.Stream{Rows: int64(rows.Rows()), Runs: rows.Runs(), Next: next},
		})
	}
	return w
}

// next returns the next rows of a table.
func (w *imageWriter) next(rows *table.Snapshot) ([]byte, error) {
	if w.saver.Stopped() {
		return nil, errNotNeeded
	}
	if err := w.acquireRead(); err != nil {
		return nil, err
	}
	w.saver.Lock.Lock()
	defer w.saver.Lock.Unlock()
	piece, live := rows.Next(len(w.room), func(int) []byte { return w.room })
	if live {
		piece = w.room[:copy(w.room, piece)] // the rows may change before they are written
	}
	if w.bytesLeft -= int64(len(piece)); w.bytesLeft <= 0 {
		w.releaseRead()
	}
	return piece, nil
}

// acquireRead waits until no other shard of the server reads its rows for writing, so that saving takes less processor
// time from training at any moment. Files may be synced concurrently.
func (w *imageWriter) acquireRead() error {
	if w.hasReadSem {
		return nil
	}
	select {
	case w.saver.ReadSem <- struct{}{}:
		w.hasReadSem = true
		return nil
	case <-w.saver.ctx.Done():
		return errNotNeeded
	}
}

func (w *imageWriter) releaseRead() {
	if w.hasReadSem {
		w.hasReadSem = false
		<-w.saver.ReadSem
	}
}

// write writes the segment and returns its description. After an error, its rows still count as changed.
func (w *imageWriter) write(st *replica.State) (seg protocol.Segment, err error) {
	ref, err := w.saver.write(w.seg, w.began)
	w.releaseRead()
	w.saver.Lock.Lock()
	defer w.saver.Lock.Unlock()
	if err != nil {
		st.Unwritten(w.image)
		return seg, err
	}
	seg = segmentOf(w.seg.Cut, ref)
	seg.Base = w.image.Base
	st.Written(w.image, protocol.SegmentFile(ref.Self()))
	return seg, nil
}
