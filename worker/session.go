package worker

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/hooks"
	"github.com/perdure/perdure/internal/proc/keys"
	"github.com/perdure/perdure/internal/proc/transport"
)

// session is this process's session with the coordinator: its credentials, its identity, and queued reports.
type session struct {
	secret perdure.Secret // the run's secret; "": none is required
	nonce  perdure.Secret // random: proves that a reconnecting client is this process

	welcomed    bool
	incarnation perdure.Incarnation
	ticket      perdure.Secret // proves to servers that this process holds its slot
	conn        transport.Conn // nil while there is none
	reports     []wire.Frame   // not sent yet
}

// newSession returns a session for the given configuration.
func newSession(cfg *Config) (s session, err error) {
	if cfg.Slot.Requested() < perdure.NoSlot {
		return s, fmt.Errorf("%w: worker: invalid slot %d; choose a slot ≥ 1, perdure.SlotZero, or 0 for any free slot",
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

// hello returns the first message on each connection.
func (s *session) hello(cfg *Config, slot perdure.Slot, job string) wire.Hello {
	h := wire.Hello{
		Role: wire.RoleWorker, Index: int(slot), Process: cfg.Process, PID: cfg.PID,
		Incarnation: s.incarnation, Job: job, Grow: cfg.Grow, SavesAtCuts: cfg.SavesAtCuts,
		Secret: s.secret, Nonce: s.nonce, Ticket: s.ticket, Version: cmp.Or(cfg.hooks.Version, hooks.ModuleVersion()),
	}
	if cfg.Observer {
		h.Role = wire.RoleObserver
	}
	return h
}

// welcome handles the coordinator's answer, and sends the reports that were queued while disconnected.
func (s *session) welcome(conn transport.Conn, w *wire.Welcome) {
	s.incarnation, s.ticket, s.welcomed, s.conn = w.Incarnation, w.Ticket, true, conn
	if len(s.reports) > 0 && s.send(s.reports...) == nil {
		s.reports = nil
	}
}

// down records that a connection has broken.
func (s *session) down(conn transport.Conn) {
	if s.conn == conn {
		s.conn = nil
	}
}

// report sends a frame, now or on the next connection; it queues at most maxReports.
func (s *session) report(f wire.Frame) {
	if s.send(f) != nil && len(s.reports) < maxReports {
		s.reports = append(s.reports, f)
	}
}

// send sends frames to the coordinator, and never waits. It returns transport.ErrClosed if there is no connection, or
// if the connection accepted nothing and was closed.
func (s *session) send(frames ...wire.Frame) error {
	if s.conn == nil {
		return transport.ErrClosed
	}
	err := transport.SendOrClose(s.conn, frames...)
	if errors.Is(err, transport.ErrClosed) {
		s.conn = nil
	}
	return err
}
