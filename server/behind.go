package server

import (
	"errors"

	"github.com/perdure/perdure/checkpoint"
	"github.com/perdure/perdure/table"
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
	if !sh.job.Recovery.Background() || sh.writing > 0 || !sh.intake.AtCut() {
		return false
	}
	sh.writing = sh.intake.MinClock()
	sh.leaveCut(sh.writing)
	if sh.s.cfg.Weakened.Cuts {
		sh.applyToCut()
	}
	if sh.place.config.Head {
		sh.saveBehind()
	}
	return true
}

// behind is a segment that is being written while its shard goes on.
type behind struct {
	sh   *shard
	rows []*table.Snapshot // guarded by sh.mu, as what they are of
	room []byte
}

// errNotNeeded means that nobody needs a segment any more.
var errNotNeeded = errors.New("server: the shard has moved, or the server ends")

// saveBehind writes the shard as it is now, at a cut, in a goroutine of its own. It
// needs sh.mu.
func (sh *shard) saveBehind() {
	seg := sh.segment(sh.writing)
	b := &behind{sh: sh, room: make([]byte, behindPiece)}
	for _, p := range sh.parts {
		rows := p.Snapshot()
		b.rows = append(b.rows, rows)
		seg.Tables = append(seg.Tables, checkpoint.TableRows{
			Spec: p.Spec, First: int64(p.First),
			Stream: &checkpoint.Stream{Rows: int64(rows.Rows()), Next: func() ([]byte, error) { return b.next(rows) }},
		})
	}
	sh.behind = true
	sh.s.wg.Go(func() { b.write(seg) })
}

// next returns a table's next rows.
func (b *behind) next(rows *table.Snapshot) ([]byte, error) {
	sh := b.sh
	if sh.retired() || sh.s.ctx.Err() != nil {
		return nil, errNotNeeded
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	piece, live := rows.Next(len(b.room), func(int) []byte { return b.room })
	if live {
		piece = b.room[:copy(b.room, piece)] // it may change before it is written
	}
	return piece, nil
}

// write writes the segment. What cannot be written now is said, and waited for at the
// next cut.
func (b *behind) write(seg *checkpoint.Segment) {
	sh := b.sh
	ref, err := checkpoint.WriteSegment(sh.s.cfg.Disk, sh.s.cfg.CheckpointDir, seg)
	sh.mu.Lock()
	for _, rows := range b.rows {
		rows.Close()
	}
	sh.mu.Unlock()
	if sh.retired() || sh.s.ctx.Err() != nil {
		return
	}
	if err == nil {
		sh.saved(seg.Cut, ref)
		return
	}
	sh.s.cfg.Log.Error("cannot write a checkpoint segment; training goes on to the next cut", "shard", sh.id, "err", err)
	sh.trouble(err.Error())
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.behind, sh.pumped = false, false // it may stand there already
	sh.carryOut()
}
