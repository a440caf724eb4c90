package server

import (
	"sync/atomic"
	"time"

	"github.com/perdure/perdure/internal/data/wire"
)

// flushDelay is how long frames that no process waits for may be held back so that they go out together:
// acknowledgements, and the commit positions that are sent to predecessors.
const flushDelay = 5 * time.Millisecond

// scheduleFlush sends all pending frames after flushDelay. Run does not wait for it: after Run has ended, there is no
// connection left to send on.
func (s *Server) scheduleFlush() {
	if s.flush.scheduled.CompareAndSwap(false, true) {
		s.flush.timer.Reset(flushDelay)
	}
}

// flushTimer schedules flushAll. It allocates its timer once, since a busy server needs it hundreds of times per
// second.
type flushTimer struct {
	scheduled atomic.Bool
	timer     *time.Timer
}

func (t *flushTimer) init(all func()) {
	t.timer = time.AfterFunc(time.Hour, all)
	t.timer.Stop() // until a frame is pending
}

// flushAll sends the pending frames, in one batch per connection.
func (s *Server) flushAll() {
	s.flush.scheduled.Store(false)
	owed := map[*conn][]wire.Frame{}
	for _, sh := range s.heldShards() {
		sh.pendingFrames(owed)
	}
	for c, frames := range owed {
		c.send(frames...)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		c.sendHeld()
	}
	for _, p := range s.peers.byAddr {
		if c := p.conn(); c != nil {
			c.sendHeld()
		}
	}
}

// pendingFrames adds the pending frames to a map by connection.
func (sh *shard) pendingFrames(to map[*conn][]wire.Frame) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.retired() {
		return
	}
	if pred := sh.neighbours.predecessor; pred != nil {
		if f, ok := sh.link.PendingCommit(); ok {
			to[pred] = append(to[pred], f)
		}
	}
	sh.service.pendingAcks(to)
}

// sender decides when a shard's frames are sent: immediately, with others of a batch, or after a delay. shard.mu guards
// it.
type sender struct {
	batch         *batch // of the goroutine that holds the lock; nil: frames are sent immediately
	scheduleFlush func() // schedules sending of the frames held back
}

// send sends frames immediately or adds them to the current batch.
func (to *sender) send(c *conn, frames ...wire.Frame) {
	if to.batch == nil {
		c.send(frames...)
		return
	}
	to.batch.put(c, frames)
}

// sendDelayed is like send for frames that can wait for other frames. They are sent with the next frame of the
// connection, or after flushDelay.
func (to *sender) sendDelayed(c *conn, frames ...wire.Frame) {
	if c.queue(frames) {
		to.scheduleFlush()
	}
}
