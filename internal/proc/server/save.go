package server

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/placement"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/disk"
	"github.com/perdure/perdure/internal/data/table"
	"github.com/perdure/perdure/internal/data/wire"
)

// What cannot be written, or read, is tried this often before the server gives
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
		Job: sh.job.ID, Generation: sh.name.Generation, Epoch: sh.name.Epoch, Cut: cut,
		Shard: sh.id, Seed: sh.job.Seed, Seq: sh.rep.State.Seq(),
		Applied: append([]perdure.Clock(nil), sh.rep.State.Applied()...),
		States:  append([][]byte(nil), sh.rep.State.States()...),
	}
}

// whole is segment with the rows where they lie: nothing is copied. It needs sh.mu.
func (sh *shard) whole() *checkpoint.Segment {
	seg := sh.segment(sh.rep.State.MinClock())
	for _, p := range sh.rep.State.Parts() {
		seg.Tables = append(seg.Tables, checkpoint.TableRows{Spec: p.Spec, First: int64(p.First), Image: p.Image()})
	}
	return seg
}

// beginSave has a cut written, in a goroutine of its own. Where the shard stands at it, it
// answers reads meanwhile and takes updates in, and applies none. It needs sh.mu.
func (sh *shard) beginSave(sv *replica.Save) {
	if sv.Image != nil {
		w := sh.beginWriting(sv.Image)
		sh.s.wg.Go(func() { sh.saveBehind(w) })
		return
	}
	cut, whole := sv.Cut, (*checkpoint.Segment)(nil)
	if !sh.traits.Behind() {
		whole = sh.whole()
	}
	sh.s.wg.Go(func() { sh.save(cut, whole) })
}

// save writes a cut while the shard stands at it: whole, or, if that is nil, what has
// changed.
func (sh *shard) save(cut perdure.Clock, whole *checkpoint.Segment) {
	var seg perdure.Segment
	err := sh.insist("cannot write a checkpoint segment; training waits", func() (err error) {
		if whole == nil {
			sh.mu.Lock()
			w := sh.beginWriting(sh.rep.State.Image(cut))
			sh.mu.Unlock()
			seg, err = w.write()
			return err
		}
		began := time.Now()
		ref, err := checkpoint.WriteSegment(sh.s.cfg.Disk, sh.s.cfg.CheckpointDir, whole)
		if err == nil {
			sh.mu.Lock()
			sh.disk.saveTime, sh.disk.saveBytes = time.Since(began), ref.Bytes
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
	sh.passCut(seg)
}

// diskWork is how a shard gets on with its disk.
type diskWork struct {
	problem   string        // why it cannot write, or read; "": it can
	saveTime  time.Duration // that the last segment took to be written
	saveBytes int64         // of it
}

// described says of a segment what others need to know.
func described(cut perdure.Clock, ref checkpoint.SegmentRef) perdure.Segment {
	return perdure.Segment{Cut: cut, File: ref.File, Bytes: ref.Bytes, CRC: ref.CRC, Seq: ref.Seq}
}

func (sh *shard) trouble(problem string) {
	sh.mu.Lock()
	sh.disk.problem = problem
	sh.mu.Unlock()
	sh.s.notify()
}

// passCut tells the shard, and its replicas, that a cut is saved, as a segment.
func (sh *shard) passCut(seg perdure.Segment) {
	defer sh.s.notify()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.disk.problem = ""
	if sh.retired() {
		return // its successor saves it, too
	}
	sh.appendFact(&replica.Fact{Kind: wire.KindPassCut, Slot: perdure.NoSlot, Clock: seg.Cut, Payload: wire.JSON(seg)})
	sh.advance()
}

// loadContent reads what a shard held at the cut that the view says: from the checkpoint,
// or, at clock 0 and where none is kept, nothing.
func (s *Server) loadContent(id perdure.ShardID, v *perdure.View) (replica.Content, error) {
	job := s.jobSpec()
	c := replica.Content{States: make([][]byte, job.Slots), Applied: make([]perdure.Clock, job.Slots)}
	at := v.RestoredAt(id)
	if at == 0 {
		return c, nil // its tables are entries of the log
	}
	m, err := s.cfg.manifest(job.ID, at, v.Generation, v.Shards[id].Restored)
	if err != nil {
		return c, err
	}
	blank := func(spec perdure.TableSpec, first, rows int64) (table.Image, error) {
		p, err := blankPart(job, v, id, len(c.Parts), spec, first, rows)
		if err != nil {
			return table.Image{}, err
		}
		c.Parts = append(c.Parts, p)
		return p.Image(), nil
	}
	seg, err := checkpoint.Restore(s.cfg.Disk, s.cfg.CheckpointDir, m, id, blank)
	if err != nil {
		return c, err
	}
	if len(seg.Applied) < job.Slots || len(seg.Applied) > len(v.Slots) {
		return c, fmt.Errorf("segment of %d slots in a job of %d", len(seg.Applied), len(v.Slots))
	}
	c.States = make([][]byte, len(seg.Applied))
	for _, p := range c.Parts {
		if err := p.Restored(); err != nil {
			return c, err
		}
	}
	copy(c.States, seg.States)
	c.Applied, c.Seq = seg.Applied, seg.Seq
	return c, nil
}

// blankPart makes the part that a table's rows of a segment are read into, after
// checking that they are what the shard holds.
func blankPart(job *perdure.JobSpec, v *perdure.View, id perdure.ShardID, t int, spec perdure.TableSpec, first,
	rows int64,
) (*table.Part, error) {
	if t >= len(v.Tables) || v.Tables[t] != spec {
		return nil, fmt.Errorf("segment has a table %s that is not the job's", spec.Name)
	}
	if !spec.Sparse {
		from, n := placement.Range(spec.Rows, job.Shards, id)
		if first != int64(from) || rows != int64(n) {
			return nil, fmt.Errorf("segment holds rows %d to %d of table %s, the shard %d to %d", first, first+rows-1,
				spec.Name, from, int(from)+n-1)
		}
	}
	p := table.Blank(spec, perdure.TableID(t), job.Seed, perdure.RowID(first), int(rows))
	return p, nil
}

// manifest finds the checkpoint of a cut that a generation begins with, or that was
// made within it.
func (c Config) manifest(job string, cut perdure.Clock, generation perdure.Generation,
	within bool,
) (checkpoint.Manifest, error) {
	all, err := checkpoint.List(c.Disk, c.CheckpointDir)
	if err != nil && len(all) == 0 {
		return checkpoint.Manifest{}, err
	}
	for _, m := range all { // newest first
		if m.Cut == cut && (m.Generation < generation || within && m.Generation == generation) {
			return m, m.CheckJob(job)
		}
	}
	return checkpoint.Manifest{}, fmt.Errorf("%w of clock %d in %s", checkpoint.ErrNoCheckpoint, cut,
		c.CheckpointDir)
}

func (s *Server) jobSpec() *perdure.JobSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.job
}
