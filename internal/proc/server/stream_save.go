package server

import (
	"errors"
	"time"

	"github.com/perdure/perdure/internal/proc/shardstore"
)

// defaultSnapshotBytes is how much of the log of all shards is read, by default, before
// they are written.
const defaultSnapshotBytes = 256 << 20

// saveSnapshot has a snapshot written, in a goroutine of its own, if enough was read since
// the last. It needs sh.mu.
func (sh *shard) saveSnapshot() {
	if !sh.link.Place().Head {
		return
	}
	st := sh.stream
	about, snap := st.Save(&sh.rep.State)
	if about == nil {
		return
	}
	n := sh.link.Name()
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
			sh.saveSnapshot() // of what was read meanwhile: if the log is full now, nothing more is read
		}
	})
}

// makeLogRoom is told whether the log waits for room. What has come to be there while the
// shard had no server, perhaps before its first snapshot, is then given up for a single
// one: else nobody could go on.
func (sh *shard) makeLogRoom(full bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.stream == nil || !sh.link.Begun() || sh.stream.Ended() {
		return // nothing more is begun when the shard ends, or the server
	}
	sh.stream.Full(full)
	if !full {
		return
	}
	sh.saveSnapshot()
	if file, ok := sh.stream.Newest(); ok {
		sh.s.wg.Go(func() { _ = sh.stream.Trim(file) }) // the shard's end, or the server's, says it itself
	}
}
