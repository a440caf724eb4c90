package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/perdure/perdure/wire"
)

// logLook is how often it is looked whether the log is back.
const logLook = 10 * time.Millisecond

// awaitLog waits for the next log process to listen.
func (j *Job) awaitLog() {
	dialer := net.Dialer{Timeout: time.Second}
	for j.ctx.Err() == nil {
		if c, err := dialer.DialContext(j.ctx, "tcp", j.cfg.LogAddr); err == nil {
			_ = c.Close() // it was only to be seen that it answers
			j.mu.Lock()
			j.timeline.serving(wire.Event{
				Target: string(RoleLog), UnixNs: time.Now().UnixNano(), UpdatesLost: j.clock.UpdatesLost, ClocksRedone: j.clock.ClocksRedone,
			})
			j.mu.Unlock()
			j.say("serving", string(RoleLog), time.Now(), "log serves again")
			j.tellLog(logAlive)
			return
		}
		select {
		case <-time.After(logLook):
		case <-j.ctx.Done():
		}
	}
}

// The log's process is called once in a round, and killed after so many rounds without
// a word. They are counted, not timed: if this process itself stood still, that is one
// round at most. A log may be slow while its disk is, and still greets whoever connects.
const (
	logRound  = time.Second
	logRounds = 10
)

// watchLog kills the job's log process when it has been silent for too long, so that
// the next one takes its place.
func (j *Job) watchLog() {
	if j.cfg.LogAddr == "" {
		return
	}
	tick := time.NewTicker(j.logRound)
	defer tick.Stop()
	var w logWatch
	for {
		select {
		case <-j.ctx.Done():
			return
		case <-tick.C:
		}
		pid := j.group.PID(RoleLog, 0)
		answer := j.callLog()
		if j.ctx.Err() != nil {
			return
		}
		if pid != 0 {
			j.tellLog(answer)
		}
		if w.note(pid, answer == logSilent) {
			j.killLog(pid)
		}
	}
}

// How the log is: as wire.PlaceProgress says it.
const (
	logWaiting = "waiting" // it does not listen
	logAlive   = "alive"
	logSilent  = "silent"
	logDead    = "dead"
)

// callLog connects to the log, which greets at once whoever comes. That needs its
// process, but neither its disk nor room there. A connection that is refused is no
// silence: the process is about to end, or reads what it has before it listens, which
// takes as long as it takes.
func (j *Job) callLog() string {
	ctx, cancel := context.WithTimeout(j.ctx, j.logRound)
	defer cancel()
	var dialer net.Dialer
	c, err := dialer.DialContext(ctx, "tcp", j.cfg.LogAddr)
	if err == nil {
		defer c.Close()
		defer context.AfterFunc(ctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })()
		_, err = c.Read(make([]byte, 4096)) // all of it, so that the connection ends in order
	}
	var slow net.Error
	switch {
	case err == nil:
		return logAlive
	case errors.As(err, &slow) && slow.Timeout():
		return logSilent
	}
	return logWaiting
}

// logWatch counts the rounds in which a log process was silent, one after the other.
type logWatch struct{ pid, rounds int }

// note takes what one round has shown of a process (0: there is none), and reports
// whether that process is to be killed: once.
func (w *logWatch) note(pid int, silent bool) (tooLong bool) {
	if pid != w.pid || !silent {
		w.pid, w.rounds = pid, 0
	}
	if silent && pid != 0 {
		w.rounds++
	}
	return w.rounds == logRounds
}

// killLog ends a log process that is silent.
func (j *Job) killLog(pid int) {
	now := time.Now()
	j.mu.Lock()
	over := j.over
	if !over {
		j.timeline.detected(string(RoleLog), now)
	}
	j.mu.Unlock()
	if over {
		return
	}
	j.say("suspected", string(RoleLog), now, "log has been silent for too long; it is killed and replaced")
	if err := j.group.KillPID(pid); err != nil && !errors.Is(err, ErrNotRunning) {
		j.cfg.Log.Error("cannot kill a suspect", "target", RoleLog, "err", err)
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
		j.send(wire.Control(wire.KindOrder, o))
	}
}

// logOrder is what the coordinator is told of the log. It needs j.mu.
func (j *Job) logOrder() wire.Order {
	pid, began := j.group.life(place{role: RoleLog})
	return wire.Order{Kind: "log", PID: pid, Spec: fmt.Sprintf("%s %d", j.logState, began)}
}
