package server

import (
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/checkpoint"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/segments"
)

// A checkpoint in the background: at a cut every replica goes on at once, and the head
// writes what the rows were from snapshots of its tables. Where the log says nothing of a
// cut, all replicas go on at the same place in it all the same: when all updates of
// earlier clocks are applied, and the cut before is known, by the log, to be saved. So no
// shard is ever more than one cut ahead of what it has saved.

// beginSave has a cut written, in a goroutine of its own. Where the shard stands at it, it
// answers reads meanwhile and takes updates in, and applies none. It needs sh.mu.
func (sh *shard) beginSave(sv *replica.Save) {
	if sv.Image != nil {
		w := sh.saver.Begin(sh.name, sv.Image, &sh.rep.State)
		sh.s.wg.Go(func() { sh.saveBehind(w) })
		return
	}
	cut, whole := sv.Cut, (*checkpoint.Segment)(nil)
	if !sh.traits.Behind() {
		whole = sh.saver.Whole(sh.name, &sh.rep.State)
	}
	sh.s.wg.Go(func() { sh.save(cut, whole) })
}

// save writes a cut while the shard stands at it: whole, or, if that is nil, what has
// changed.
func (sh *shard) save(cut perdure.Clock, whole *checkpoint.Segment) {
	var seg perdure.Segment
	err := sh.saver.Insist(func() (err error) {
		if whole != nil {
			seg, err = sh.saver.Write(whole, cut)
			return err
		}
		sh.mu.Lock()
		w := sh.saver.Begin(sh.name, sh.rep.State.Image(cut), &sh.rep.State)
		sh.mu.Unlock()
		seg, err = sh.write(w)
		return err
	}, sh.failing("cannot write a checkpoint segment; training waits"))
	if sh.saver.Over() {
		return
	}
	if err != nil {
		sh.s.fail(fmt.Errorf("%w: save shard %d at clock %d: %w", ErrCheckpoint, sh.id, cut, err))
		return
	}
	sh.passCut(seg)
}

// write writes an image, and says what it is to the coordinator. After an error its rows count as
// changed still.
func (sh *shard) write(w *segments.Writing) (perdure.Segment, error) {
	seg, file, err := w.Write()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if err != nil {
		sh.rep.State.Unwritten(w.Image)
	} else {
		sh.rep.State.Written(w.Image, file)
	}
	return seg, err
}

// failing logs what cannot be done with the disk now, and tells the coordinator.
func (sh *shard) failing(what string) func(try int, err error) {
	return func(try int, err error) {
		sh.s.cfg.Log.Error(what, "shard", sh.id, "try", try, "err", err)
		sh.trouble(err)
	}
}

func (sh *shard) trouble(err error) {
	sh.mu.Lock()
	sh.saver.Fails(err)
	sh.mu.Unlock()
	sh.s.notify()
}

// passCut tells the shard, and its replicas, that a cut is saved, as a segment.
func (sh *shard) passCut(seg perdure.Segment) {
	defer sh.s.notify()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.saver.Works()
	if sh.retired() {
		return // its successor saves it, too
	}
	sh.appendFact(&replica.Fact{Kind: wire.KindPassCut, Slot: perdure.NoSlot, Clock: seg.Cut, Payload: wire.JSON(seg)})
	sh.advance()
}

// saveBehind writes a cut while the shard goes on. What cannot be written now is said, and
// waited for at the next cut.
func (sh *shard) saveBehind(w *segments.Writing) {
	seg, err := sh.write(w)
	if sh.saver.Over() {
		return
	}
	if err == nil {
		sh.passCut(seg)
		return
	}
	sh.s.cfg.Log.Error("cannot write a checkpoint segment; training goes on to the next cut", "shard", sh.id, "err",
		err)
	sh.trouble(err)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.rep.GiveUpSaving() // it may stand at the next one already
	sh.advance()
}

// loadContent reads what a shard held at the cut that the view says.
func (s *Server) loadContent(id perdure.ShardID, v *perdure.View) (replica.Content, error) {
	return segments.Load(s.cfg.Disk, s.cfg.CheckpointDir, s.jobSpec(), id, v)
}

func (s *Server) jobSpec() *perdure.JobSpec {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.job
}
