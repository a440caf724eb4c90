package shardstore

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/store"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// piece is how much of the rows is copied at once while the shard is locked.
const piece = 512 << 10

// ErrRetired means that a snapshot is of a shard that is not here any more.
var ErrRetired = errors.New("stream: the shard has moved")

// Load reads the newest snapshot that can be used, and returns where to read the stream from; nil
// where there is none.
func (st *Stream) Load(job *perdure.JobSpec, log *slog.Logger) (in *replica.Incoming, from updatelog.Position,
	err error,
) {
	files, err := ListSnapshots(st.Store, st.Shard)
	if err != nil {
		return nil, 0, err
	}
	if len(files) > 0 {
		st.newest = files[0].Position
	}
	for i, file := range files {
		in := replica.NewIncoming(job, st.Shard)
		err = ReadSnapshot(st.Store, file.Name, job.ID, st.Shard,
			func(about *SnapshotAbout, r io.Reader) error { return fromFile(in, about, r) })
		if err == nil {
			st.Lock.Lock()
			defer st.Lock.Unlock()
			st.saves.Restore(files[i:])
			st.facts.Restore(in.Life())
			return in, updatelog.Position(file.Position), nil
		}
		if errors.Is(err, ErrOtherJob) || store.Passes(err) { // it may be whole
			return nil, 0, err
		}
		log.Warn("cannot use a snapshot; an older one may do", "shard", st.Shard, "err", err)
	}
	return nil, 1, nil
}

// fromFile takes a snapshot's file.
func fromFile(in *replica.Incoming, about *SnapshotAbout, r io.Reader) error {
	words := make([]byte, about.Head)
	if _, err := io.ReadFull(r, words); err != nil {
		return err
	}
	if err := in.AddWords(words, true); err != nil {
		return err
	}
	for _, run := range in.Missing() {
		if _, err := io.ReadFull(r, run); err != nil {
			return err
		}
	}
	in.Filled()
	return in.Finish()
}

// Newer returns the position of a snapshot that another server has written since this one looked;
// 0: there is none.
func (st *Stream) Newer() (pos uint64) {
	files, err := ListSnapshots(st.Store, st.Shard)
	if err != nil || len(files) == 0 || files[0].Position <= st.newest {
		return 0
	}
	return files[0].Position
}

// Save begins a snapshot of a state, if enough was read since the last: about is what Write is to
// be called with, snap its rows. nil: it is not due. It needs the lock.
func (st *Stream) Save(state *replica.State) (about *SnapshotAbout, snap *replica.Snapshot) {
	if !st.saves.Due() {
		return nil, nil
	}
	snap = state.Snapshot(st.facts.Life())
	st.saves.Begin(snap.Bytes)
	return &SnapshotAbout{
		Job: st.Limits.Job, Shard: st.Shard, Seq: state.Seq(), Position: uint64(st.resume),
		Head: int64(len(snap.Words)), Rows: snap.Bytes,
	}, snap
}

// Saved says that a snapshot is written, or could not be. It needs the lock.
func (st *Stream) Saved(written bool) { st.saves.End(written) }

// Write writes a snapshot, and returns what of the stream it makes superfluous.
func (st *Stream) Write(about *SnapshotAbout, snap *replica.Snapshot) (rest StreamRest, err error) {
	defer func() {
		st.Lock.Lock()
		defer st.Lock.Unlock()
		for _, r := range snap.Rows {
			r.Close()
		}
	}()
	room := make([]byte, piece)
	file, err := WriteSnapshot(st.Store, about, func(w io.Writer) error {
		_, err := w.Write(snap.Words)
		for i := 0; i < len(snap.Rows) && err == nil; {
			b := st.copyRows(snap.Rows[i], room)
			if st.retired.Load() {
				return ErrRetired
			}
			if len(b) == 0 {
				i++
				continue
			}
			_, err = w.Write(b)
		}
		return err
	})
	if err != nil {
		return rest, err
	}
	st.Lock.Lock()
	defer st.Lock.Unlock()
	rest.oldest, rest.cut = st.saves.Written(file)
	rest.mine = st.facts.Life().Epoch <= about.Epoch
	return rest, nil
}

// StreamRest is what a new snapshot makes superfluous.
type StreamRest struct {
	oldest SnapshotFile
	cut    *SnapshotFile
	mine   bool // else, who holds the shard now sees to it
}

// Forget lets go of what is superfluous.
func (st *Stream) Forget(rest StreamRest) error {
	if !rest.mine {
		return nil
	}
	err := PruneSnapshots(st.Store, st.Shard, rest.oldest.Position)
	if err != nil || rest.cut == nil {
		return err
	}
	return st.Trim(*rest.cut)
}

// copyRows returns the next rows' bytes of a snapshot, in room.
func (st *Stream) copyRows(rows *table.Snapshot, room []byte) []byte {
	st.Lock.Lock()
	defer st.Lock.Unlock()
	b, live := rows.Next(len(room), func(n int) []byte { return room[:n] })
	if live {
		b = room[:copy(room, b)]
	}
	return b
}

// Pause waits before what failed is tried again.
func (st *Stream) Pause(d time.Duration) {
	pause, cancel := context.WithTimeout(st.ctx, d)
	<-pause.Done()
	cancel()
}
