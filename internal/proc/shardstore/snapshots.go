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

// copyBytes is how many bytes of rows are copied at a time while the shard is locked.
const copyBytes = 512 << 10

// ErrRetired means that a snapshot's shard has left this server.
var ErrRetired = errors.New("stream: the shard has moved")

// Load reads the newest usable snapshot and returns the log position to read from. in is nil if there are no snapshots.
func (st *Stream) Load(job *perdure.JobSpec, log *slog.Logger) (in *replica.IncomingSnapshot, from updatelog.Position,
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
		in := replica.NewIncomingSnapshot(job, st.Shard)
		err = ReadSnapshot(st.Store, file.Name, job.ID, st.Shard,
			func(about *SnapshotHeader, r io.Reader) error { return fromFile(in, about, r) })
		if err == nil {
			st.Lock.Lock()
			defer st.Lock.Unlock()
			st.saves.Restore(files[i:])
			st.facts.Restore(in.LogProgress())
			return in, updatelog.Position(file.Position), nil
		}
		if errors.Is(err, ErrOtherJob) || store.Retryable(err) { // the snapshot may be intact
			return nil, 0, err
		}
		log.Warn("cannot use a snapshot; trying an older one", "shard", st.Shard, "err", err)
	}
	return nil, 1, nil
}

// fromFile reads the content of a snapshot file.
func fromFile(in *replica.IncomingSnapshot, about *SnapshotHeader, r io.Reader) error {
	words := make([]byte, about.Head)
	if _, err := io.ReadFull(r, words); err != nil {
		return err
	}
	if err := in.AddHeader(words, true); err != nil {
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

// NewerPosition returns the position of a snapshot that another server has written since this one listed them, or 0.
func (st *Stream) NewerPosition() (pos uint64) {
	files, err := ListSnapshots(st.Store, st.Shard)
	if err != nil || len(files) == 0 || files[0].Position <= st.newest {
		return 0
	}
	return files[0].Position
}

// SaveLocked starts a snapshot of a state if one is due. It returns the description and the rows for Write, or nil. The
// caller must hold the lock.
func (st *Stream) SaveLocked(state *replica.State) (about *SnapshotHeader, snap *replica.Snapshot) {
	if !st.saves.Due() {
		return nil, nil
	}
	snap = state.Snapshot(st.facts.Life())
	st.saves.Start(snap.Bytes)
	return &SnapshotHeader{
		Job: st.Limits.Job, Shard: st.Shard, Seq: state.Seq(), Position: uint64(st.resume),
		Head: int64(len(snap.Header)), Rows: snap.Bytes,
	}, snap
}

// SaveDoneLocked records whether the snapshot was written. The caller must hold the lock.
func (st *Stream) SaveDoneLocked(written bool) { st.saves.End(written) }

// Write writes a snapshot and returns which older snapshots and records are no longer needed.
func (st *Stream) Write(about *SnapshotHeader, snap *replica.Snapshot) (rest ObsoleteData, err error) {
	defer func() {
		st.Lock.Lock()
		defer st.Lock.Unlock()
		for _, r := range snap.Rows {
			r.Close()
		}
	}()
	room := make([]byte, copyBytes)
	file, err := WriteSnapshot(st.Store, about, func(w io.Writer) error {
		_, err := w.Write(snap.Header)
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
	rest.oldest, rest.trimTo = st.saves.Written(file)
	rest.current = st.facts.Life().Epoch <= about.Epoch
	return rest, nil
}

// ObsoleteData describes the snapshots and log records that a new snapshot makes superfluous.
type ObsoleteData struct {
	oldest  SnapshotFile
	trimTo  *SnapshotFile
	current bool // otherwise another server now does this
}

// DeleteObsolete deletes superfluous snapshots and trims the log.
func (st *Stream) DeleteObsolete(rest ObsoleteData) error {
	if !rest.current {
		return nil
	}
	err := PruneSnapshots(st.Store, st.Shard, rest.oldest.Position)
	if err != nil || rest.trimTo == nil {
		return err
	}
	return st.Trim(*rest.trimTo)
}

// copyRows returns the bytes of a snapshot's next rows, in room.
func (st *Stream) copyRows(rows *table.Snapshot, room []byte) []byte {
	st.Lock.Lock()
	defer st.Lock.Unlock()
	b, live := rows.Next(len(room), func(n int) []byte { return room[:n] })
	if live {
		b = room[:copy(room, b)]
	}
	return b
}

// Sleep waits before a failed operation is retried.
func (st *Stream) Sleep(d time.Duration) {
	pause, cancel := context.WithTimeout(st.ctx, d)
	<-pause.Done()
	cancel()
}
