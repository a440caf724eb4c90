package supervisor

import (
	"fmt"
	"net"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// logPollInterval is how often the log's address is probed until the log is back.
const logPollInterval = 10 * time.Millisecond

// awaitLog waits until the next log process listens.
func (j *Job) awaitLog() {
	dialer := net.Dialer{Timeout: time.Second}
	for j.ctx.Err() == nil {
		if c, err := dialer.DialContext(j.ctx, "tcp", j.cfg.LogAddr); err == nil {
			_ = c.Close() // only a probe
			now := time.Now()
			j.mu.Lock()
			j.timeline.serving(wire.Event{
				Target: string(RoleLog), UnixNs: now.UnixNano(), UpdatesLost: j.lastProgress.UpdatesLost,
				ClocksRedone: j.lastProgress.ClocksRedone,
			}, now)
			j.mu.Unlock()
			j.Emit("serving", string(RoleLog), now, "log serves again")
			j.reportLog(stateAlive)
			return
		}
		select {
		case <-time.After(logPollInterval):
		case <-j.ctx.Done():
		}
	}
}

// reportLog records the log's state, and reports changes of its process to the coordinator, which shows them to users.
func (j *Job) reportLog(state string) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.logState = state
	if o := j.logOrderLocked(); o != j.reportedLog {
		j.reportedLog = o
		j.coordinator.send(wire.Control(wire.KindOrder, o))
	}
}

// logOrderLocked returns the report about the log to the coordinator. The caller must hold j.mu.
func (j *Job) logOrderLocked() wire.Order {
	pid, began := j.group.pidAndStarts(memberID{role: RoleLog})
	return wire.Order{Kind: wire.OrderLogState, PID: pid, Spec: fmt.Sprintf("%s %d", j.logState, began)}
}
