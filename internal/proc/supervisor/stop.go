package supervisor

import (
	"context"
	"fmt"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// endTimeout is how long the coordinator may take to notify all processes that the job ends.
	endTimeout = 300 * time.Millisecond
	// doneGrace is the grace period for processes of a job that is over. They have been notified, and their state is no
	// longer needed. But the coordinator may be deleting superfluous checkpoints, which takes longer on a busy machine.
	doneGrace = time.Second
)

// closing is the state of a job that is ended early, while its last checkpoint is made.
type closing struct {
	why   error // nil: the job is not being ended
	ends  bool  // the user's programs end, and are not restarted
	asked bool  // the coordinator was asked for the last checkpoint
}

// Stop ends the job early. If the job keeps checkpoints, a last one is made first, within JobConfig.LastCheckpoint,
// while training continues. If the user's programs save their work when they end, they end before it: see programEnd. A
// second call does not wait for it. Run then returns the err of the first call. If the job is already complete, Stop
// leaves its end to the process that exports the model.
func (j *Job) Stop(err error) {
	if j.startClosing(err) {
		j.Emit("closing", "", time.Now(),
			fmt.Sprintf("ending the job after a final checkpoint, which may take up to %v (stop it again to end "+
				"immediately)",
				j.cfg.LastCheckpoint))
	}
}

// startClosing implements Stop. It reports whether a last checkpoint is made.
func (j *Job) startClosing(err error) (saves bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.endReason != nil:
	case j.closing.why != nil:
		j.endLocked(j.closing.why)
	case j.lastProgress.Complete:
		j.closing.why = err
	case j.cfg.LastCheckpoint <= 0 && (j.cfg.ProgramGrace <= 0 || !j.cfg.OwnWorkers):
		j.endLocked(err)
	default:
		j.closing.why = err
		go programEnd{j}.close()
		return j.cfg.LastCheckpoint > 0
	}
	return false
}

// programEnd ends a job and the user's programs in it.
type programEnd struct{ *Job }

// close ends the user's programs, requests the last checkpoint, and ends the job when its time is over.
func (j programEnd) close() {
	j.endPrograms()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.cfg.LastCheckpoint <= 0 {
		j.endLocked(j.closing.why)
		return
	}
	j.closing.asked = true
	j.coordinator.send(closeOrder())
	time.AfterFunc(j.cfg.LastCheckpoint, j.closeTimedOut)
}

// endPrograms ends the user's programs if they save their work since their last update as drafts, and waits for them
// for at most JobConfig.ProgramGrace. Drafts continue the last checkpoint only if it is of their clock, so no program
// may end a clock in between. Unless cuts are by slot, a checkpoint can be made only of a clock that all slots have
// reached, so endPrograms first waits until they are at the same one, for half of the time at most. Programs without
// drafts continue, because with fast clocks they would not end at the same one.
func (j programEnd) endPrograms() {
	if !j.cfg.OwnWorkers || j.cfg.ProgramGrace <= 0 || !j.writesDrafts() {
		return
	}
	ctx, cancel := context.WithTimeout(j.ctx, j.cfg.ProgramGrace)
	defer cancel()
	until := time.Now().Add(j.cfg.ProgramGrace / 2)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !j.startEndingPrograms(time.Now().After(until)) {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
	j.group.signalWhere(signalTerm, func(k *child) bool { return k.spec.Role == wire.RoleWorker })
	j.group.Await(ctx, wire.RoleWorker)
}

// writesDrafts reports whether the user's programs save their work when they receive SIGTERM, and no checkpoint needs
// them.
func (j programEnd) writesDrafts() bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.savesOnTerm && !j.lastProgress.SavesAtCuts
}

// startEndingPrograms reports whether the wait for equal clocks is over, and stops restarts of programs then.
func (j programEnd) startEndingPrograms(late bool) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	late = late || j.cfg.SlotCuts
	first := perdure.Clock(-1)
	for i := range j.lastProgress.Members {
		m := &j.lastProgress.Members[i]
		if m.Role != wire.RoleWorker || m.State == "left" {
			continue
		}
		if first >= 0 && m.Clock != first && !late {
			return false
		}
		first = m.Clock
	}
	j.closing.ends = true
	return true
}

// closeTimedOut ends the job without a last checkpoint, after its time limit.
func (j *Job) closeTimedOut() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.lastProgress.Complete {
		j.endLocked(j.closing.why)
	}
}

func closeOrder() wire.Frame {
	return wire.Control(wire.KindOrder, wire.Order{Kind: wire.OrderFinalCheckpoint})
}

// resendCloseLocked requests the last checkpoint from a new coordinator, because its predecessor may not have recorded
// the request. The caller must hold j.mu.
func (j *Job) resendCloseLocked() {
	if j.closing.asked && j.endReason == nil {
		j.coordinator.send(closeOrder())
	}
}

// endIfClosedLocked ends the job once its last checkpoint is made. The caller must hold j.mu.
func (j *Job) endIfClosedLocked(p *wire.Progress) {
	if j.closing.why != nil && p.Closed && !p.Complete {
		j.endLocked(j.closing.why)
	}
}
