package supervisor

import (
	"fmt"
	"time"

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
	why error // nil: the job is not being ended
}

// Stop ends the job early. If the job keeps checkpoints, a last one is made first, within JobConfig.LastCheckpoint,
// while training continues. A second call does not wait for it. Run then returns the err of the first call. If the job
// is already complete, Stop leaves its end to the process that exports the model.
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
	case j.cfg.LastCheckpoint <= 0:
		j.endLocked(err)
	default:
		j.closing.why = err
		j.coordinator.send(closeOrder())
		time.AfterFunc(j.cfg.LastCheckpoint, j.closeTimedOut)
		return true
	}
	return false
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
	if j.closing.why != nil && j.endReason == nil {
		j.coordinator.send(closeOrder())
	}
}

// endIfClosedLocked ends the job once its last checkpoint is made. The caller must hold j.mu.
func (j *Job) endIfClosedLocked(p *wire.Progress) {
	if j.closing.why != nil && p.Closed && !p.Complete {
		j.endLocked(j.closing.why)
	}
}
