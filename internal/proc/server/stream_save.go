package server

import (
	"context"
	"errors"
	"io"

	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/updatelog"
)

// defaultSnapshotBytes is how much of the log of all shards is read, by default, before
// they are written.
const defaultSnapshotBytes = 256 << 20

// saveSnapshot has a snapshot written, in a goroutine of its own, if enough was read since
// the last. It needs sh.mu.
func (sh *shard) saveSnapshot() {
	sv := &sh.stream.saves
	if !sh.link.Place().Head || !sv.Due() {
		return
	}
	snap := sh.rep.State.Snapshot(sh.stream.facts.Life())
	sv.Begin(snap.Bytes)
	about := &checkpoint.Snapshot{
		Job: sh.job.ID, Shard: sh.id, Generation: sh.name.Generation, Epoch: sh.name.Epoch,
		Seq: sh.rep.State.Seq(), Position: uint64(sh.stream.resume), Head: int64(len(snap.Words)), Rows: snap.Bytes,
	}
	sh.s.wg.Go(func() {
		err := sh.writeSnapshot(about, snap)
		if err != nil && !errors.Is(err, errMoved) && sh.stream.ctx.Err() == nil {
			sh.s.cfg.Log.Error("cannot write a snapshot; the update log keeps growing", "shard", sh.id, "err", err)
			sh.trouble(err.Error())
			pause, cancel := context.WithTimeout(sh.stream.ctx, savePause)
			<-pause.Done()
			cancel()
		}
		sh.mu.Lock()
		defer sh.mu.Unlock()
		sv.End(err == nil)
		if sh.stream.ctx.Err() == nil {
			sh.saveSnapshot() // of what was read meanwhile: if the log is full now, nothing more is read
		}
	})
}

// writeSnapshot writes a snapshot, and lets go of what it makes superfluous.
func (sh *shard) writeSnapshot(about *checkpoint.Snapshot, snap *replica.Snapshot) error {
	s := sh.s
	defer func() {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		for _, r := range snap.Rows {
			r.Close()
		}
	}()
	piece := make([]byte, snapshotPiece)
	file, err := checkpoint.WriteSnapshot(s.cfg.Disk, s.cfg.SnapshotDir, about, func(w io.Writer) error {
		_, err := w.Write(snap.Words)
		for i := 0; i < len(snap.Rows) && err == nil; {
			b := sh.copyRows(snap.Rows[i], piece)
			if sh.retired() {
				return errMoved
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
		return err
	}
	sh.mu.Lock()
	oldest, cut := sh.stream.saves.Written(file)
	mine := sh.stream.facts.Life().Epoch <= about.Epoch
	if sh.disk.problem != "" {
		sh.disk.problem = ""
		defer s.notify()
	}
	sh.mu.Unlock()
	if !mine {
		return nil // who holds the shard now sees to the rest
	}
	err = checkpoint.PruneSnapshots(s.cfg.Disk, s.cfg.SnapshotDir, sh.id, oldest.Position)
	if err != nil || cut == nil {
		return err
	}
	return sh.cutLog(*cut)
}

// cutLog lets the log forget what a snapshot holds.
func (sh *shard) cutLog(file checkpoint.SnapshotFile) error {
	return sh.s.updates.Trim(sh.stream.ctx, int(sh.id), updatelog.Position(file.Position))
}

// makeLogRoom is told whether the log waits for room. What has come to be there while the
// shard had no server, perhaps before its first snapshot, is then given up for a single
// one: else nobody could go on.
func (sh *shard) makeLogRoom(full bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.stream == nil || sh.link.Log() == nil || sh.retired() {
		return
	}
	sv := &sh.stream.saves
	sv.Full(full)
	if !full {
		return
	}
	sh.saveSnapshot()
	if file, ok := sv.Newest(); ok {
		sh.s.wg.Go(func() { _ = sh.cutLog(file) }) // the shard's end, or the server's, says it itself
	}
}

// copyRows returns the next rows' bytes of a snapshot, in room.
func (sh *shard) copyRows(rows *table.Snapshot, room []byte) []byte {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	b, live := rows.Next(len(room), func(n int) []byte { return room[:n] })
	if live {
		b = room[:copy(room, b)]
	}
	return b
}

// fromFile takes a snapshot's file.
func fromFile(in *replica.Incoming, about *checkpoint.Snapshot, r io.Reader) error {
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
