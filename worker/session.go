package worker

import (
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// session is what this process is to its coordinator: what it shows to be let in, what it was
// let in as, and what it has to say.
type session struct {
	secret perdure.Secret // the run's; "": it is not asked for
	nonce  perdure.Secret // drawn by this client: no other can say that it is this process

	welcomed    bool
	incarnation perdure.Incarnation
	ticket      perdure.Secret // for servers: it speaks for its slot
	conn        transport.Conn // nil while there is none
	reports     []wire.Frame   // not sent yet
}

// newSession begins with what the configuration says.
func newSession(cfg *Config) (s session, err error) {
	if cfg.Slot.Asked() < perdure.NoSlot {
		return s, fmt.Errorf("%w: worker: slot %d; choose one from 1, perdure.SlotZero, or 0 for any that is free",
			perdure.ErrUsage, cfg.Slot)
	}
	if s.secret = cfg.Secret; cfg.SecretFile != "" {
		if s.secret, err = keys.ReadSecret(cfg.SecretFile); err != nil {
			return s, fmt.Errorf("worker: %w", err)
		}
	}
	if s.secret != "" {
		s.nonce = perdure.Secret(rand.Text())
	}
	return s, nil
}

// hello is what it says first on each connection.
func (s *session) hello(cfg *Config, slot perdure.Slot, job string) wire.Hello {
	h := wire.Hello{
		Role: wire.RoleWorker, Index: int(slot), Process: cfg.Process, PID: cfg.PID,
		Incarnation: s.incarnation, Job: job, Grow: cfg.Grow, AtCuts: cfg.SavesAtCuts,
		Secret: s.secret, Nonce: s.nonce, Ticket: s.ticket,
	}
	if cfg.Observer {
		h.Role = wire.RoleObserver
	}
	return h
}

// welcome takes the coordinator's answer, and sends what it was not told meanwhile.
func (s *session) welcome(conn transport.Conn, w *wire.Welcome) {
	s.incarnation, s.ticket, s.welcomed, s.conn = w.Incarnation, w.Ticket, true, conn
	if len(s.reports) > 0 && s.tell(s.reports...) == nil {
		s.reports = nil
	}
}

// down notes that a connection has broken.
func (s *session) down(conn transport.Conn) {
	if s.conn == conn {
		s.conn = nil
	}
}

// report sends a frame, now or on the next connection; it keeps no more than maxReports.
func (s *session) report(f wire.Frame) {
	if s.tell(f) != nil && len(s.reports) < maxReports {
		s.reports = append(s.reports, f)
	}
}

// tell sends frames to the coordinator, and never waits. The error is transport.ErrClosed where
// there is no connection, or it took nothing and was given up.
func (s *session) tell(frames ...wire.Frame) error {
	if s.conn == nil {
		return transport.ErrClosed
	}
	err := transport.Tell(s.conn, frames...)
	if errors.Is(err, transport.ErrClosed) {
		s.conn = nil
	}
	return err
}
