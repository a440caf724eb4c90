package supervisor

import (
	"fmt"
	"net"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// logLook is how often it is looked whether the log is back.
const logLook = 10 * time.Millisecond

// awaitLog waits for the next log process to listen.
func (j *Job) awaitLog() {
	dialer := net.Dialer{Timeout: time.Second}
	for j.ctx.Err() == nil {
		if c, err := dialer.DialContext(j.ctx, "tcp", j.cfg.LogAddr); err == nil {
			_ = c.Close() // it was only to be seen that it answers
			now := time.Now()
			j.mu.Lock()
			j.timeline.serving(wire.Event{
				Target: string(RoleLog), UnixNs: now.UnixNano(), UpdatesLost: j.clock.UpdatesLost,
				ClocksRedone: j.clock.ClocksRedone,
			}, now)
			j.mu.Unlock()
			j.say("serving", string(RoleLog), now, "log serves again")
			j.tellLog(placeAlive)
			return
		}
		select {
		case <-time.After(logLook):
		case <-j.ctx.Done():
		}
	}
}

// tellLog notes the log's state, and tells the coordinator what is news of its process:
// for people who ask it.
func (j *Job) tellLog(state string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.logState = state
	if o := j.logOrder(); o != j.logTold {
		j.logTold = o
		j.line.send(wire.Control(wire.KindOrder, o))
	}
}

// logOrder is what the coordinator is told of the log. It needs j.mu.
func (j *Job) logOrder() wire.Order {
	pid, began := j.group.life(place{role: RoleLog})
	return wire.Order{Kind: wire.OrderLog, PID: pid, Spec: fmt.Sprintf("%s %d", j.logState, began)}
}
