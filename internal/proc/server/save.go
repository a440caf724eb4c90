package server

import (
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/protocol"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/shardstore"
)

// startRoundLocked writes some rows in a new goroutine. The caller must hold sh.mu.
func (sh *shard) startRoundLocked(sv *replica.Save) {
	round := sh.saver.RoundLocked(sh.link.Fence(), sv, &sh.rep.State)
	sh.s.wg.Go(func() {
		took, err := round.Write()
		if sh.saver.Stopped() {
			return
		}
		if err != nil {
			took = max(took, shardstore.RetryPause)
		}
		sh.mu.Lock()
		sh.rep.MarkDirty() // the shard may be paused until this round is written or the next one is due
		sh.advanceLocked()
		sh.mu.Unlock()
		sh.s.notify()
		if sh.rep.State.RoundsTimed() {
			sh.waitForNextRound(took)
		}
	})
}

// waitForNextRound allows the next round after a delay that depends on how long the last one took.
func (sh *shard) waitForNextRound(took time.Duration) {
	if sh.saver.WaitForNextRound(took) {
		sh.mu.Lock()
		sh.rep.State.AllowRound()
		sh.mu.Unlock()
	}
}

// startSaveLocked writes a cut in a new goroutine. If the shard is paused at the cut, it still answers reads and
// receives updates, but applies none. The caller must hold sh.mu.
func (sh *shard) startSaveLocked(sv *replica.Save) {
	cut := sh.saver.CutLocked(sh.link.Fence(), sv, &sh.rep.State, sh.traits.SavesInBackground())
	sh.s.wg.Go(func() {
		seg, err := cut.Write()
		switch {
		case sh.saver.Stopped(): // the shard's next owner saves it too
		case err == nil:
			sh.appendPassCut(seg)
		case cut.PausesShard():
			sh.s.fail(fmt.Errorf("%w: save shard %d at clock %d: %w", ErrCheckpoint, sh.id, cut.Clock(), err))
		default:
			sh.giveUpSaving()
		}
	})
}

// appendPassCut informs the shard and its replicas that a cut is saved in a segment.
func (sh *shard) appendPassCut(seg protocol.Segment) {
	defer sh.s.notify()
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.saver.ClearProblemLocked()
	if sh.retired() {
		return
	}
	sh.appendFactLocked(&replica.ControlEntry{
		Kind: wire.KindPassCut, Slot: perdure.NoSlot, Clock: seg.Cut, Payload: wire.JSON(seg),
	})
	sh.advanceLocked()
}

// giveUpSaving informs the shard that a cut it has passed was not saved. Saving continues with the next cut.
func (sh *shard) giveUpSaving() {
	defer sh.s.notify() // reports the missed cut
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return
	}
	sh.rep.AbandonSave() // the shard may already be paused at the next cut
	sh.advanceLocked()
}
