package server

import (
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// soonDelay is how long what nobody waits for may be held back, to go out with others:
// acknowledgements, and the word to a predecessor of what is committed.
const soonDelay = 5 * time.Millisecond

// tellSoon sends all that is owed, after soonDelay. Run does not wait for it: once it has ended, no
// connection is left to send on.
func (s *Server) tellSoon() {
	if s.telling.begun.CompareAndSwap(false, true) {
		s.telling.timer.Reset(soonDelay)
	}
}

// telling says whether tellAll is on its way, and brings it. Its timer is made once, since a busy server
// needs it hundreds of times in a second.
type telling struct {
	begun atomic.Bool
	timer *time.Timer
}

func (t *telling) of(all func()) {
	t.timer = time.AfterFunc(time.Hour, all)
	t.timer.Stop() // until something is owed
}

// tellAll sends what is owed, one batch on each connection.
func (s *Server) tellAll() {
	s.telling.begun.Store(false)
	owed := map[*conn][]wire.Frame{}
	for _, sh := range s.held() {
		sh.owed(owed)
	}
	for c, frames := range owed {
		c.send(frames...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.sendHeld()
	}
	for _, p := range s.peers.at {
		if c := p.conn(); c != nil {
			c.sendHeld()
		}
	}
}

// owed adds what is owed, by connection.
func (sh *shard) owed(to map[*conn][]wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return
	}
	if pred := sh.near.pred; pred != nil {
		if f, ok := sh.link.Owed(); ok {
			to[pred] = append(to[pred], f)
		}
	}
	sh.service.owed(to)
}

// sender is how what a shard has to say goes out: at once, with others that came together, or soon.
// shard.mu guards it.
type sender struct {
	batch *batch // of the goroutine that holds the lock; nil: what is sent goes at once
	soon  func() // has all that is held back sent soon
}

// send sends frames on a connection: at once, or, while what came together is being
// dealt with, together with others.
func (to *sender) send(c *conn, frames ...wire.Frame) {
	if to.batch == nil {
		c.send(frames...)
		return
	}
	to.batch.put(c, frames)
}

// sendSoon is send for frames that others are to go with: the last of these is sent,
// and the others with it, or all go soon.
func (to *sender) sendSoon(c *conn, frames ...wire.Frame) {
	if c.queue(frames) {
		to.soon()
	}
}
