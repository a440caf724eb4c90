package supervisor

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/control"
	"github.com/perdure/perdure/internal/proc/keys"
)

// A watched process is probed once per round, and killed after this number of consecutive rounds without an answer.
// Counting rounds instead of time means that a stall of the supervisor itself counts as one round at most. A probed
// process may be slow because of its disk, but still answers.
const (
	defaultProbeInterval = time.Second
	silentRounds         = 10
)

// probeTarget is a process of the job that only the supervisor watches.
type probeTarget struct {
	role wire.Role
	addr string
	// request is sent by a probe to the process. It is "" if the process greets every connection without being asked.
	request  string
	onResult func(state string) // receives the result of every probe; may be nil
}

// probeTargets returns the processes that this supervisor watches. The coordinator watches servers and workers.
func (j *Job) probeTargets() (all []probeTarget) {
	if j.cfg.Control != "" { // any answer suffices: it is sent by the coordinator's loop
		all = append(all, probeTarget{
			role: wire.RoleCoordinator, addr: j.cfg.Control,
			request: "HEAD " + control.AlivePath + " HTTP/1.0\r\n\r\n",
		})
	}
	if j.cfg.LogAddr != "" {
		all = append(all, probeTarget{role: RoleLog, addr: j.cfg.LogAddr, onResult: j.reportLog})
	}
	return all
}

// probeLoop probes process w once per interval until the job ends. It kills a process that has been silent for
// silentRounds consecutive rounds, so that it is replaced.
func (j *Job) probeLoop(w probeTarget) {
	tick := time.NewTicker(j.probeInterval)
	defer tick.Stop()
	var s silenceCounter
	for {
		select {
		case <-j.ctx.Done():
			return
		case <-tick.C:
		}
		pid := j.group.PID(w.role, 0)
		answer := j.probe(w)
		if j.ctx.Err() != nil {
			return
		}
		if pid != 0 && w.onResult != nil {
			w.onResult(answer)
		}
		if s.note(pid, answer == stateSilent) {
			j.killSilent(w.role, pid)
		}
	}
}

// The states of a process, as in wire.MemberProgress.
const (
	stateWaiting = "waiting" // not listening
	stateAlive   = "alive"
	stateSilent  = "silent"
	stateDead    = "dead"
)

// probe connects to a process and waits for any answer. A successful connection proves nothing: the system accepts
// connections for a stopped process, and another process may hold the socket. Only the answer proves that the process
// works, and it depends neither on its disk nor on free disk space. A refused connection does not count as silence: the
// process is about to end, or reads its state before it listens, which may take any time.
func (j *Job) probe(w probeTarget) string {
	ctx, cancel := context.WithTimeout(j.ctx, j.probeInterval)
	defer cancel()
	c, err := w.dial(ctx, j.cfg.Ring)
	if err == nil {
		defer c.Close()
		defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
		if _, err = c.Write([]byte(w.request)); err == nil {
			_, err = c.Read(make([]byte, 4096)) // reads the whole answer, so that the connection closes gracefully
		}
	}
	var slow net.Error
	switch {
	case err == nil:
		return stateAlive
	case errors.As(err, &slow) && slow.Timeout():
		return stateSilent
	}
	return stateWaiting
}

// dial connects to the process, over TLS if ring, the job's keys, is not nil. The process must then present a
// coordinator's certificate or, if it is an update log, a server's.
func (w *probeTarget) dial(ctx context.Context, ring *keys.Ring) (net.Conn, error) {
	if ring == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	}
	shows := keys.Coordinator
	if w.role == RoleLog {
		shows = keys.Server
	}
	return (&tls.Dialer{Config: ring.Client(shows)}).DialContext(ctx, "tcp", w.addr)
}

// silenceCounter counts the consecutive rounds in which a process was silent.
type silenceCounter struct{ pid, rounds int }

// note records the result of one round for a process (0: none), and reports, once, whether the process must be killed.
func (s *silenceCounter) note(pid int, silent bool) (tooLong bool) {
	if pid != s.pid || !silent {
		s.pid, s.rounds = pid, 0
	}
	if silent && pid != 0 {
		s.rounds++
	}
	return s.rounds == silentRounds
}

// killSilent kills a silent process.
func (j *Job) killSilent(role wire.Role, pid int) {
	now, target := time.Now(), targetName(memberID{role: role})
	j.mu.Lock()
	over := j.done
	if !over {
		j.timeline.detected(target, now, now)
	}
	j.mu.Unlock()
	if over {
		return
	}
	j.Emit("suspected", target, now, fmt.Sprintf("%s has been silent for too long; it is killed and replaced", target))
	if err := j.group.KillPID(pid); err != nil && !errors.Is(err, ErrNotRunning) {
		j.cfg.Log.Error("cannot kill a suspect", "target", target, "err", err)
	}
}
