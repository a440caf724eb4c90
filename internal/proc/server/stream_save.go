package server

import (
	"errors"
	"time"

	"github.com/perdure/perdure/internal/proc/shardstore"
)

// defaultSnapshotBytes is the default number of update log bytes, over all shards, between two snapshots.
const defaultSnapshotBytes = 256 << 20

// saveSnapshotLocked writes a snapshot in a new goroutine if enough was read since the last one. The caller must hold
// sh.mu.
func (sh *shard) saveSnapshotLocked() {
	if !sh.link.Role().Head {
		return
	}
	st := sh.stream
	about, snap := st.SaveLocked(&sh.rep.State)
	if about == nil {
		return
	}
	n := sh.link.Fence()
	about.Generation, about.Epoch = n.Generation, n.Epoch
	sh.s.wg.Go(func() {
		began := time.Now()
		rest, err := st.Write(about, snap)
		if !st.Stopped() && !errors.Is(err, shardstore.ErrRetired) {
			sh.s.shared.saves.Note(about.Rows, time.Since(began), err)
		}
		if err == nil {
			sh.mu.Lock()
			news := sh.saver.ClearProblemLocked()
			sh.mu.Unlock()
			if news {
				sh.s.notify()
			}
			err = st.DeleteObsolete(rest)
		}
		if err != nil && !errors.Is(err, shardstore.ErrRetired) && !st.Stopped() {
			sh.s.cfg.Log.Error("cannot write a snapshot; the update log keeps growing", "shard", sh.id, "err", err)
			sh.saver.SetProblem(err)
			st.Sleep(shardstore.RetryPause)
		}
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if st.SaveDoneLocked(err == nil); !st.Stopped() {
			sh.saveSnapshotLocked() // of the records read meanwhile; a full log would not deliver any more
		}
	})
}

// makeLogSpace is called when the update log becomes full, and when it is no longer full. A full log may hold records
// that were added while the shard had no server, perhaps even before its first snapshot. A single snapshot then allows
// trimming; without it, the job could not continue.
func (sh *shard) makeLogSpace(full bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.stream == nil || !sh.link.Started() || sh.stream.Stopped() {
		return // nothing is started while the shard or the server ends
	}
	sh.stream.SetFullLocked(full)
	if !full {
		return
	}
	sh.saveSnapshotLocked()
	if file, ok := sh.stream.NewestLocked(); ok {
		sh.s.wg.Go(func() { _ = sh.stream.Trim(file) }) // the end of the shard or the server reports the error
	}
}
