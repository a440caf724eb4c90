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

// saves are the snapshots of a shard that are written, so that not all of its stream need
// be read again, nor kept.
type saves struct {
	bytes   int64              // read from the stream since the newest was begun, as it counts them
	at      updatelog.Position // of the last record that was read
	between int64              // read before that, and after the one before it
	size    int64              // of its rows
	writing bool
	files   []checkpoint.SnapshotFile // the newest first
	full    bool                      // the log takes nothing until it is cut
}

// keptSnapshots is how many are kept of a shard: should the newest be damaged, there is
// another one, and the stream still has what follows that.
const keptSnapshots = 2

// defaultSnapshotBytes is how much of the log of all shards is read, by default, before
// they are written.
const defaultSnapshotBytes = 256 << 20

// logParts is how often a shard is written, at least, while its log fills up: two
// snapshots are kept with what follows the older, and a third may be on its way. If so
// many parts follow the older as are more than mostParts, it is given up: updates would
// soon find no room, and only what is read has a snapshot begun.
const (
	logParts  = 5
	mostParts = 3
)

// logPart is a part of what the log takes at most of a shard; 0: there is no bound.
func (sh *shard) logPart() int64 { return sh.s.cfg.LogBytes / int64(sh.job.Shards) / logParts }

// count counts what an entry takes in the stream. Small ones take much less than the
// records that they are in, by which the stream is bounded.
func (sv *saves) count(job string, e *updatelog.Entry) {
	sv.bytes += int64(len(e.Payload))
	if e.Position > sv.at && sv.at > 0 {
		sv.bytes += int64(e.Position-sv.at) * int64(updatelog.Overhead(job))
	}
	sv.at = e.Position
}

// saveSnapshot has a snapshot written, in a goroutine of its own, if enough was read since
// the last: as much as the shard's part of what is asked for, and as it is to write, but
// never so much that the log could fill up. It needs sh.mu.
func (sh *shard) saveSnapshot() {
	sv := &sh.stream.saves
	least := max(sh.s.cfg.SnapshotBytes/int64(sh.job.Shards), sv.size)
	if most := sh.logPart(); most > 0 {
		least = min(least, most)
	}
	if sv.full {
		least = 1
	}
	if sv.writing || !sh.place.config.Head || sv.bytes < least {
		return
	}
	snap := sh.rep.State.Snapshot(sh.stream.life)
	sv.writing, sv.size = true, snap.Bytes
	before := sv.between
	sv.between, sv.bytes = sv.bytes, 0
	about := &checkpoint.Snapshot{
		Job: sh.job.ID, Shard: sh.id, Generation: sh.name.generation, Epoch: sh.name.epoch,
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
		sv.writing = false
		if err != nil {
			sv.bytes, sv.between = sv.bytes+sv.between, before
		}
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
	sv := &sh.stream.saves
	sv.files = append([]checkpoint.SnapshotFile{file}, sv.files...)
	sv.files = sv.files[:min(len(sv.files), keptSnapshots)]
	files, mine := sv.files, sh.stream.life.Epoch <= about.Epoch
	most := mostParts * sh.logPart()
	full := sv.full || most > 0 && sv.between+sv.bytes > most
	if sh.problem != "" {
		sh.problem = ""
		defer s.notify()
	}
	sh.mu.Unlock()
	if !mine {
		return nil // who holds the shard now sees to the rest
	}
	if err := checkpoint.PruneSnapshots(s.cfg.Disk, s.cfg.SnapshotDir, sh.id,
		files[len(files)-1].Position); err != nil {
		return err
	}
	switch {
	case full:
		return sh.cutLog(files[0])
	case len(files) == keptSnapshots:
		return sh.cutLog(files[keptSnapshots-1])
	}
	return nil
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
	if sh.stream == nil || sh.log == nil || sh.retired() {
		return
	}
	sv := &sh.stream.saves
	if sv.full = full; full {
		sh.saveSnapshot()
	}
	if full && !sv.writing && len(sv.files) > 0 {
		file := sv.files[0]
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
