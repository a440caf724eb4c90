package server

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/core/words"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// beginRound has some rows written, in a goroutine of its own. It needs sh.mu.
func (sh *shard) beginRound(sv *replica.Save) {
	round := sh.saver.Round(sh.link.Name(), sv, &sh.rep.State)
	sh.s.wg.Go(func() {
		took, err := round.Write()
		if sh.saver.Over() {
			return
		}
		if err != nil {
			took = max(took, shardstore.Pause)
		}
		sh.mu.Lock()
		sh.rep.Stir() // the shard may stand until this round is written, or the next one be due
		sh.advance()
		sh.mu.Unlock()
		sh.s.notify()
		if sh.rep.State.RoundsTimed() {
			sh.rest(took)
		}
	})
}

// rest lets the next round come when it may, after one that took so long.
func (sh *shard) rest(took time.Duration) {
	if sh.saver.Rest(took) {
		sh.mu.Lock()
		sh.rep.State.AllowRound()
		sh.mu.Unlock()
	}
}

// beginSave has a cut written, in a goroutine of its own. Where the shard stands at it, it
// answers reads meanwhile and takes updates in, and applies none. It needs sh.mu.
func (sh *shard) beginSave(sv *replica.Save) {
	cut := sh.saver.Cut(sh.link.Name(), sv, &sh.rep.State, sh.traits.Behind())
	sh.s.wg.Go(func() {
		seg, err := cut.Write()
		switch {
		case sh.saver.Over(): // its successor saves it, too
		case err == nil:
			sh.passCut(seg)
		case cut.Stands():
			sh.s.fail(fmt.Errorf("%w: save shard %d at clock %d: %w", ErrCheckpoint, sh.id, cut.Clock(), err))
		default:
			sh.giveUpSaving()
		}
	})
}

// passCut tells the shard, and its replicas, that a cut is saved, as a segment.
func (sh *shard) passCut(seg words.Segment) {
	defer sh.s.notify()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.saver.Works()
	if sh.retired() {
		return
	}
	sh.appendFact(&replica.Fact{Kind: wire.KindPassCut, Slot: perdure.NoSlot, Clock: seg.Cut, Payload: wire.JSON(seg)})
	sh.advance()
}

// giveUpSaving tells the shard that a cut which it has left is not saved: the next one is waited for.
func (sh *shard) giveUpSaving() {
	defer sh.s.notify() // that it is missed
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return
	}
	sh.rep.GiveUpSaving() // it may stand at the next one already
	sh.advance()
}
