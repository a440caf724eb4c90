package server

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// What cannot be written, or read, is tried again so many times before the server gives
// up; on a full disk until there is room.
const (
	saveTries = 10
	savePause = time.Second
)

// insist does something with a disk until it succeeds or the shard, or the server, is
// not needed any more. It says so while it fails.
func (sh *shard) insist(failing string, f func() error) error {
	over := func(error) bool { return sh.retired() || sh.s.ctx.Err() != nil }
	if over(nil) {
		return nil
	}
	try := 0
	return disk.Retry{Tries: saveTries, Pause: savePause, Over: over}.Do(sh.s.ctx, func() error {
		err := f()
		if try++; err != nil {
			sh.s.cfg.Log.Error(failing, "shard", sh.id, "try", try, "err", err)
			sh.trouble(err.Error())
		}
		return err
	})
}

// segment describes the shard as it is at a cut, without its rows. It needs sh.mu.
func (sh *shard) segment(cut perdure.Clock) *checkpoint.Segment {
	return &checkpoint.Segment{
		Job: sh.job.ID, Generation: sh.name.generation, Epoch: sh.name.epoch, Cut: cut,
		Shard: sh.id, Seed: sh.job.Seed, Seq: sh.seq,
		Applied: append([]perdure.Clock(nil), sh.intake.Applied()...),
		States:  append([][]byte(nil), sh.states...),
	}
}

// whole is segment with the rows where they lie: nothing is copied. It needs sh.mu.
func (sh *shard) whole() *checkpoint.Segment {
	seg := sh.segment(sh.intake.MinClock())
	for _, p := range sh.parts {
		seg.Tables = append(seg.Tables, checkpoint.TableRows{Spec: p.Spec, First: int64(p.First), Image: p.Image()})
	}
	return seg
}

// saveStanding has the head write the cut that it stands at, in a goroutine of its own.
// Meanwhile the shard answers reads and takes updates in, and applies none. Where
// checkpoints are written in the background it stands because the last one is not
// written: its head died over it, or could not write it. After the job's last clock
// nothing changes, so that that cut can be written like this, too. It needs sh.mu.
func (sh *shard) saveStanding() {
	if !sh.ready || !sh.place.config.Head || sh.behind {
		return
	}
	if sh.intake.AtCut() || sh.writing > 0 && sh.writing == sh.schedule.End {
		sh.saving = true
		cut, whole := sh.intake.MinClock(), (*checkpoint.Segment)(nil)
		if !sh.traits.Behind() {
			whole = sh.whole()
		}
		sh.s.wg.Go(func() { sh.save(cut, whole) })
	}
}

// save writes a cut while the shard stands at it: whole, or, if that is nil, what has
// changed.
func (sh *shard) save(cut perdure.Clock, whole *checkpoint.Segment) {
	var seg perdure.Segment
	err := sh.insist("cannot write a checkpoint segment; training waits", func() (err error) {
		if whole == nil {
			sh.mu.Lock()
			w := sh.beginWriting(cut)
			sh.mu.Unlock()
			seg, err = w.write()
			return err
		}
		began := time.Now()
		ref, err := checkpoint.WriteSegment(sh.s.cfg.Disk, sh.s.cfg.CheckpointDir, whole)
		if err == nil {
			sh.mu.Lock()
			sh.saveTime, sh.saveBytes = time.Since(began), ref.Bytes
			sh.mu.Unlock()
		}
		seg = described(cut, ref)
		return err
	})
	if sh.retired() || sh.s.ctx.Err() != nil {
		return
	}
	if err != nil {
		sh.s.fail(fmt.Errorf("%w: save shard %d at clock %d: %w", ErrCheckpoint, sh.id, cut, err))
		return
	}
	sh.saved(seg)
}

// described says of a segment what others need to know.
func described(cut perdure.Clock, ref checkpoint.SegmentRef) perdure.Segment {
	return perdure.Segment{Cut: cut, File: ref.File, Bytes: ref.Bytes, CRC: ref.CRC, Seq: ref.Seq}
}

func (sh *shard) trouble(problem string) {
	sh.mu.Lock()
	sh.problem = problem
	sh.mu.Unlock()
	sh.s.notify()
}

// saved tells the shard, and its replicas, that a cut is saved, as a segment.
func (sh *shard) saved(seg perdure.Segment) {
	defer sh.s.notify()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.problem = ""
	if sh.retired() {
		return // its successor saves it, too
	}
	sh.appendFact(wire.KindPassCut, perdure.NoSlot, 0, seg.Cut, wire.JSON(seg))
	sh.carryOut()
}

// passCut goes on after a cut that is saved. It needs sh.mu.
func (sh *shard) passCut(seg perdure.Segment) {
	switch {
	case seg.Cut == sh.writing:
	case seg.Cut > sh.cut: // it stands there
		sh.leaveCut(seg.Cut)
	default:
		return // two heads have saved it
	}
	sh.segments = append(sh.segments, seg)
	sh.writing, sh.behind, sh.saving = 0, false, false
}

// leaveCut goes on after a cut. It needs sh.mu.
func (sh *shard) leaveCut(cut perdure.Clock) {
	sh.cut = cut
	sh.intake.SetCut(sh.schedule.After(cut))
	sh.planCut()
}

// loadContent reads what a shard held at the cut that the view says: from the checkpoint,
// or, at clock 0 and where none is kept, nothing.
func (s *Server) loadContent(id perdure.ShardID, v *perdure.View) (content, error) {
	job := s.jobSpec()
	c := content{states: make([][]byte, job.Slots), applied: make([]perdure.Clock, job.Slots)}
	at := v.RestoredAt(id)
	if at == 0 {
		return c, nil // its tables are entries of the log
	}
	m, err := s.manifest(at, v.Generation, v.Shards[id].Restored)
	if err != nil {
		return c, err
	}
	blank := func(spec perdure.TableSpec, first, rows int64) (table.Image, error) {
		p, err := blankPart(job, v, id, len(c.parts), spec, first, rows)
		if err != nil {
			return table.Image{}, err
		}
		c.parts = append(c.parts, p)
		return p.Image(), nil
	}
	seg, err := checkpoint.Restore(s.cfg.Disk, s.cfg.CheckpointDir, m, id, blank)
	if err != nil {
		return c, err
	}
	if len(seg.Applied) < job.Slots || len(seg.Applied) > len(v.Slots) {
		return c, fmt.Errorf("segment of %d slots in a job of %d", len(seg.Applied), len(v.Slots))
	}
	c.states = make([][]byte, len(seg.Applied))
	for _, p := range c.parts {
		if err := p.Restored(); err != nil {
			return c, err
		}
	}
	copy(c.states, seg.States)
	c.applied, c.seq = seg.Applied, seg.Seq
	return c, nil
}

// blankPart makes the part that a table's rows of a segment are read into, after
// checking that they are what the shard holds.
func blankPart(job *perdure.JobSpec, v *perdure.View, id perdure.ShardID, t int, spec perdure.TableSpec, first, rows int64) (*table.Part, error) {
	if t >= len(v.Tables) || v.Tables[t] != spec {
		return nil, fmt.Errorf("segment has a table %s that is not the job's", spec.Name)
	}
	if !spec.Sparse {
		from, n := placement.Range(spec.Rows, job.Shards, id)
		if first != int64(from) || rows != int64(n) {
			return nil, fmt.Errorf("segment holds rows %d to %d of table %s, the shard %d to %d", first, first+rows-1, spec.Name, from, int(from)+n-1)
		}
	}
	p := table.Blank(spec, perdure.TableID(t), job.Seed, perdure.RowID(first), int(rows))
	return p, nil
}

// manifest finds the checkpoint of a cut that a generation begins with, or that was
// made within it.
func (s *Server) manifest(cut perdure.Clock, generation perdure.Generation, within bool) (checkpoint.Manifest, error) {
	all, err := checkpoint.List(s.cfg.Disk, s.cfg.CheckpointDir)
	if err != nil && len(all) == 0 {
		return checkpoint.Manifest{}, err
	}
	for _, m := range all { // newest first
		if m.Cut == cut && (m.Generation < generation || within && m.Generation == generation) {
			return m, m.CheckJob(s.jobSpec().ID)
		}
	}
	return checkpoint.Manifest{}, fmt.Errorf("%w of clock %d in %s", checkpoint.ErrNoCheckpoint, cut, s.cfg.CheckpointDir)
}

func (s *Server) jobSpec() *perdure.JobSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.job
}
