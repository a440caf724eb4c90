package server

import (
	"errors"
	"time"

	"github.com/perdure/perdure/internal/proc/shardstore"
)

// defaultSnapshotBytes is the default number of update log bytes, over all shards, between two snapshots.
const defaultSnapshotBytes = 256 << 20

// saveSnapshot writes a snapshot in a new goroutine if enough was read since the last one. The caller must hold sh.mu.
func (sh *shard) saveSnapshot() {
	if !sh.link.Role().Head {
		return
	}
	st := sh.stream
	about, snap := st.Save(&sh.rep.State)
	if about == nil {
		return
	}
	n := sh.link.Fence()
	about.Generation, about.Epoch = n.Generation, n.Epoch
	sh.s.wg.Go(func() {
		began := time.Now()
		rest, err := st.Write(about, snap)
		if !st.Ended() && !errors.Is(err, shardstore.ErrRetired) {
			sh.s.work.saves.Note(about.Rows, time.Since(began), err)
		}
		if err == nil {
			sh.mu.Lock()
			news := sh.saver.Works()
			sh.mu.Unlock()
			if news {
				sh.s.notify()
			}
			err = st.Forget(rest)
		}
		if err != nil && !errors.Is(err, shardstore.ErrRetired) && !st.Ended() {
			sh.s.cfg.Log.Error("cannot write a snapshot; the update log keeps growing", "shard", sh.id, "err", err)
			sh.saver.Fails(err)
			st.Pause(shardstore.Pause)
		}
		sh.mu.Lock()
		defer sh.mu.Unlock()
		if st.Saved(err == nil); !st.Ended() {
			sh.saveSnapshot() // of the records read meanwhile; a full log would not deliver any more
		}
	})
}

// makeLogSpace is called when the update log becomes full, and when it is no longer full. A full log may hold records
// that were added while the shard had no server, perhaps even before its first snapshot. A single snapshot then allows
// trimming; without it, the job could not continue.
func (sh *shard) makeLogSpace(full bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.stream == nil || !sh.link.Started() || sh.stream.Ended() {
		return // nothing is started while the shard or the server ends
	}
	sh.stream.Full(full)
	if !full {
		return
	}
	sh.saveSnapshot()
	if file, ok := sh.stream.Newest(); ok {
		sh.s.wg.Go(func() { _ = sh.stream.Trim(file) }) // the end of the shard or the server reports the error
	}
}
