package supervisor

import (
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// endTimeout is how long the coordinator may take to notify all processes that the job ends.
	endTimeout = 300 * time.Millisecond
	// overGrace is the grace period for processes of a job that is over. They have been notified, and their state is no
	// longer needed.
	overGrace = 150 * time.Millisecond
)

// closing is the state of a job that is ended early, while its last checkpoint is made.
type closing struct {
	why error // nil: the job is not being ended
}

// Stop ends the job early. If the job keeps checkpoints, a last one is made first, within JobConfig.LastCheckpoint,
// while training continues. A second call does not wait for it. Run then returns the err of the first call. If the job
// is already complete, Stop leaves its end to the process that exports the model.
func (j *Job) Stop(err error) {
	if j.stop(err) {
		j.say("closing", "", time.Now(),
			fmt.Sprintf("ending the job after a last checkpoint, for at most %v (stop it again to end immediately)",
				j.cfg.LastCheckpoint))
	}
}

// stop implements Stop. It reports whether a last checkpoint is made.
func (j *Job) stop(err error) (saves bool) {
	j.mu.Lock()
	defer j.mu.Unlock()
	switch {
	case j.why != nil:
	case j.closing.why != nil:
		j.end(j.closing.why)
	case j.clock.Complete:
		j.closing.why = err
	case j.cfg.LastCheckpoint <= 0:
		j.end(err)
	default:
		j.closing.why = err
		j.line.send(closeOrder())
		time.AfterFunc(j.cfg.LastCheckpoint, j.late)
		return true
	}
	return false
}

// late ends the job without a last checkpoint, after its time limit.
func (j *Job) late() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.clock.Complete {
		j.end(j.closing.why)
	}
}

func closeOrder() wire.Frame {
	return wire.Control(wire.KindOrder, wire.Order{Kind: wire.OrderFinalCheckpoint})
}

// remind requests the last checkpoint from a new coordinator, because its predecessor may not have recorded the
// request. The caller must hold j.mu.
func (j *Job) remind() {
	if j.closing.why != nil && j.why == nil {
		j.line.send(closeOrder())
	}
}

// closed ends the job once its last checkpoint is made. The caller must hold j.mu.
func (j *Job) closed(p *wire.Progress) {
	if j.closing.why != nil && p.Closed && !p.Complete {
		j.end(j.closing.why)
	}
}
