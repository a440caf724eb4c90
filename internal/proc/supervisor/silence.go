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

// A watched process is called once in a round, and killed after this number of rounds without
// a word. They are counted, not timed: if this process itself stood still, that is one
// round at most. Who is called may be slow while its disk is, and still answers.
const (
	callRound    = time.Second
	silentRounds = 10
)

// watched is a process of the job that no other process watches.
type watched struct {
	role wire.Role
	addr string
	// call is what it is asked, so that it says something; "": it greets whoever comes.
	call string
	tell func(state string) // hears of every call how the process is; may be nil
}

// watches returns whom the job watches itself. Servers and workers are watched by the
// coordinator.
func (j *Job) watches() (all []watched) {
	if j.cfg.Control != "" { // any answer will do: it comes when the loop has done something
		all = append(all, watched{
			role: wire.RoleCoordinator, addr: j.cfg.Control,
			call: "HEAD " + control.AlivePath + " HTTP/1.0\r\n\r\n",
		})
	}
	if j.cfg.LogAddr != "" {
		all = append(all, watched{role: RoleLog, addr: j.cfg.LogAddr, tell: j.tellLog})
	}
	return all
}

// watch kills a process when it has been silent for too long, so that the next one
// takes its place.
func (j *Job) watch(w watched) {
	tick := time.NewTicker(j.callRound)
	defer tick.Stop()
	var s silence
	for {
		select {
		case <-j.ctx.Done():
			return
		case <-tick.C:
		}
		pid := j.group.PID(w.role, 0)
		answer := j.call(w)
		if j.ctx.Err() != nil {
			return
		}
		if pid != 0 && w.tell != nil {
			w.tell(answer)
		}
		if s.note(pid, answer == placeSilent) {
			j.killSilent(w.role, pid)
		}
	}
}

// How a process is: as wire.PlaceProgress says it.
const (
	placeWaiting = "waiting" // it does not listen
	placeAlive   = "alive"
	placeSilent  = "silent"
	placeDead    = "dead"
)

// call connects to a process and waits for a word, whatever it is. That it can connect
// says nothing: the system does that for a process that stands still, and who holds the
// socket may be another. The word needs the process, but neither its disk nor room there.
// A connection that is refused is no silence: the process is about to end, or reads what
// it has before it listens, which takes as long as it takes.
func (j *Job) call(w watched) string {
	ctx, cancel := context.WithTimeout(j.ctx, j.callRound)
	defer cancel()
	c, err := w.dial(ctx, j.cfg.Ring)
	if err == nil {
		defer c.Close()
		defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
		if _, err = c.Write([]byte(w.call)); err == nil {
			_, err = c.Read(make([]byte, 4096)) // all of it, so that the connection ends in order
		}
	}
	var slow net.Error
	switch {
	case err == nil:
		return placeAlive
	case errors.As(err, &slow) && slow.Timeout():
		return placeSilent
	}
	return placeWaiting
}

// dial connects to a process that is watched. One with keys is called with them; a log shows those of a server.
func (w *watched) dial(ctx context.Context, ring *keys.Ring) (net.Conn, error) {
	if ring == nil {
		return new(net.Dialer).DialContext(ctx, "tcp", w.addr)
	}
	shows := keys.Coordinator
	if w.role == RoleLog {
		shows = keys.Server
	}
	return (&tls.Dialer{Config: ring.Client(shows)}).DialContext(ctx, "tcp", w.addr)
}

// silence counts the rounds in which a process was silent, one after the other.
type silence struct{ pid, rounds int }

// note takes what one round has shown of a process (0: there is none), and reports
// whether that process is to be killed: once.
func (s *silence) note(pid int, silent bool) (tooLong bool) {
	if pid != s.pid || !silent {
		s.pid, s.rounds = pid, 0
	}
	if silent && pid != 0 {
		s.rounds++
	}
	return s.rounds == silentRounds
}

// killSilent ends a process that is silent.
func (j *Job) killSilent(role wire.Role, pid int) {
	now, target := time.Now(), targetName(place{role: role})
	j.mu.Lock()
	over := j.over
	if !over {
		j.timeline.detected(target, now, now)
	}
	j.mu.Unlock()
	if over {
		return
	}
	j.say("suspected", target, now, fmt.Sprintf("%s has been silent for too long; it is killed and replaced", target))
	if err := j.group.KillPID(pid); err != nil && !errors.Is(err, ErrNotRunning) {
		j.cfg.Log.Error("cannot kill a suspect", "target", target, "err", err)
	}
}
