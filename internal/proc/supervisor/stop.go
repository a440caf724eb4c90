package supervisor

import (
	"fmt"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

const (
	// lastWord is how long the coordinator may take to tell everybody that the job ends.
	lastWord = 300 * time.Millisecond
	// overGrace is how long processes of a job that is over may take to end by themselves:
	// they have heard that it is, and nothing that they have is needed any more.
	overGrace = 150 * time.Millisecond
)

// closing is the end of a job that is ended early, while its last checkpoint is made.
type closing struct {
	why error // nil: it is not being ended
}

// Stop ends the job early: where checkpoints are kept a last one is made before, for
// which there is JobConfig.LastCheckpoint; meanwhile all goes on. Asked a second time it
// does not wait. Then Run returns err, that of the first who asked. A job that is complete
// is left to who exports its model.
func (j *Job) Stop(err error) {
	if j.stop(err) {
		j.say("closing", "", time.Now(),
			fmt.Sprintf("the job is to end; a last checkpoint is made, for at most %v (asked again, it ends at once)",
				j.cfg.LastCheckpoint))
	}
}

// stop is Stop; it reports whether a last checkpoint is made.
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

// late ends the job without a last checkpoint: there was no more time for it.
func (j *Job) late() {
	j.mu.Lock()
	defer j.mu.Unlock()
	if !j.clock.Complete {
		j.end(j.closing.why)
	}
}

func closeOrder() wire.Frame { return wire.Control(wire.KindOrder, wire.Order{Kind: wire.OrderClose}) }

// remind asks a coordinator that has just come for the last checkpoint: the one before it
// may not have recorded it. It needs j.mu.
func (j *Job) remind() {
	if j.closing.why != nil && j.why == nil {
		j.line.send(closeOrder())
	}
}

// closed ends the job once its last checkpoint is made. It needs j.mu.
func (j *Job) closed(p *wire.Progress) {
	if j.closing.why != nil && p.Closed && !p.Complete {
		j.end(j.closing.why)
	}
}
