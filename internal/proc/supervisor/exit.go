package supervisor

import (
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// leaveDelay delays the replacement of a process whose slot may just have left, until the coordinator has reported it.
const leaveDelay = 250 * time.Millisecond

// exitContext is the state of the job that decides, together with the exit itself, about its consequences.
type exitContext struct {
	own       bool // a worker's program that this job runs; the coordinator counts its failures
	planned   bool // a planned fault ended the process
	slotLeft  bool // the slot has left the job
	leaving   bool // the slot will leave at a clock that is already known
	finished  bool // the job's last clock is done
	jobDone   bool // the job has ended
	stopping  bool // the supervisor is stopping
	noReplace bool // servers are not replaced
}

// restart is whether another process follows.
type restart uint8

const (
	restartNever restart = iota // not needed
	restartAfter                // after the planned pause or the backoff
	restartOff                  // the server's position stays empty; the job continues without it
	restartFail                 // the job ends with an error
)

// exitActions are the consequences of an exit.
type exitActions struct {
	record  bool         // the timeline of failures gets an entry
	report  *wire.Exited // the report to the coordinator, if any
	delay   bool         // a replacement waits for leaveDelay at least
	restart restart
}

// decide returns the consequences of an exit.
func (c *exitContext) decide(e *Exit) (a exitActions) {
	drained := e.Role == wire.RoleServer && e.Code == ExitDrained
	if e.Code == 0 {
		a.delay = c.slotLeft || c.leaving
		switch {
		case c.slotLeft: // it has done all its work
			return a
		case c.own && c.finished: // the same, but this supervisor does not know yet that the job has ended
			a.delay, a.restart = true, restartAfter
			return a
		}
	}
	// A worker whose slot leaves may exit before this supervisor knows that the slot has left.
	a.record = !c.jobDone && !drained && (e.Code != 0 || !c.leaving)
	if e.Role != RoleLog {
		a.report = &wire.Exited{Role: e.Role, Index: e.Index, PID: e.PID, How: e.Description}
		if c.own && !c.planned && !c.jobDone {
			*a.report = e.WorkerReport(true)
		}
		// The coordinator may answer that this failure was the last one allowed.
		a.delay = a.delay || a.report.Failed
	}
	failed := e.PID == 0 || e.Code > 0 && e.Code != exitFenced && e.Code != exitSignal
	switch {
	case c.jobDone || c.stopping:
	case c.own && e.PID != 0:
		a.restart = restartAfter
	case drained:
		a.restart = restartOff
	case failed:
		a.restart = restartFail
	case c.noReplace && e.Role == wire.RoleServer:
		a.restart = restartOff
	default:
		a.restart = restartAfter
	}
	return a
}
