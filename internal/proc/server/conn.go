package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/internal/core/chain"
	"github.com/perdure/perdure/internal/core/replica"
	"github.com/perdure/perdure/internal/data/wire"
	"github.com/perdure/perdure/internal/proc/transport"
)

// conn is a connection from a worker, an observer or another server.
type conn struct {
	replica.Reader
	tc  transport.Conn
	log *slog.Logger
	// pendingOpens holds the Opens and Follows for shards or epochs that are not here yet. Server.mu guards it.
	pendingOpens map[perdure.ShardID]*pendingOpen
	role         wire.Role        // of the peer
	server       bool             // the peer is a server
	index        int              // the peer server's index
	job          *perdure.JobSpec // immutable
	batch        batch            // owned by the receiving goroutine
	taking       *incomingCopy    // the incoming snapshot; owned by the receiving goroutine

	mu        sync.Mutex // guards the fields below
	holding   bool
	held      []wire.Frame
	heldBytes int
	broken    bool
	reads     readBudget // the weight of waiting reads
	staged    round
}

// addRead counts a waiting read. It fails if too many are waiting.
func (c *conn) addRead(rd *replica.Read) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads.add(rd)
}

// removeRead stops counting a waiting read and reports whether others wait for the same MinClock.
func (c *conn) removeRead(rd *replica.Read) (others bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reads.remove(rd)
}

// countStaged counts an acknowledgement that a clock is staged on one more shard. It reports whether this is probably
// the last shard. Workers that wait for staging wait for all shards.
func (c *conn) countStaged(clock perdure.Clock) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.staged.complete(clock)
}

// beginRound resets the number of shards that acknowledge on this connection, since it may have changed.
func (c *conn) beginRound() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.staged = round{}
}

// round counts events that each of several shards sends once per clock.
type round struct {
	clock       perdure.Clock
	here, whole int // events of this round and of the previous one
}

// complete counts an event of a clock and reports whether the round has as many events as the previous one.
func (r *round) complete(clock perdure.Clock) bool {
	if clock != r.clock {
		r.clock, r.here, r.whole = clock, 0, r.here
	}
	r.here++
	return r.here >= r.whole
}

// maxHeld is the maximum number of bytes of answers that are held back.
const maxHeld = 16 << 10

// send queues frames for the peer. It never blocks: a peer that reads too slowly must not delay others and loses its
// connection.
func (c *conn) send(frames ...wire.Frame) {
	if len(frames) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.addLocked(frames); !c.holding {
		c.flushLocked()
	}
}

// queue is like send, for callers that call sendHeld soon. It reports whether they must.
func (c *conn) queue(frames []wire.Frame) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.addLocked(frames)
	return len(c.held) > 0
}

// addLocked holds frames back if that is allowed. The caller must hold c.mu.
func (c *conn) addLocked(frames []wire.Frame) {
	c.held = append(c.held, frames...)
	lent := false
	for i := range frames {
		c.heldBytes += wire.HeaderBytes + frames[i].PayloadBytes()
		lent = lent || frames[i].Lent
	}
	if lent || c.heldBytes > maxHeld {
		c.flushLocked()
	}
}

// sendHeld sends the frames that queue held back.
func (c *conn) sendHeld() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.holding {
		c.flushLocked()
	}
}

// hold delays frames until release, which is called when all received frames have been handled. So the answers to
// frames that arrived together are sent together.
func (c *conn) hold() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.holding = true
}

func (c *conn) release() {
	c.mu.Lock()
	c.holding = false
	c.flushLocked()
	c.mu.Unlock()
	c.batch.flush()
}

// closeAsync closes the connection without blocking. Close may wait briefly until queued frames are sent, and callers
// of end hold locks. The receiving goroutine ends with the connection.
func (c *conn) closeAsync() { go c.tc.Close() }

// flushLocked sends the frames that are held back. The caller must hold c.mu.
func (c *conn) flushLocked() {
	if len(c.held) == 0 {
		return
	}
	if err := c.tc.TrySend(c.held...); err != nil && !c.broken {
		c.broken = true
		c.log.Warn("closed a connection", "slot", c.Slot, "peer", c.tc.Peer(), "err", err)
		c.closeAsync()
	}
	clear(c.held) // releases the payloads
	c.held, c.heldBytes = c.held[:0], 0
}

// connOf returns the connection of a reader.
func connOf(r *replica.Reader) *conn { return r.Conn.(*conn) }

// serve handles one connection until it ends.
func (s *Server) serve(tc transport.Conn) {
	defer tc.Close()
	defer context.AfterFunc(s.ctx, func() { tc.Close() })() // also before the handshake
	hello, peer, err := s.admission.Admit(tc)
	if err != nil {
		return // Admit has logged it
	}
	defer peer.Release()
	defer tc.Close() // queued frames count against the peer until then
	c := &conn{
		Reader: replica.Reader{Slot: perdure.Slot(hello.Index), Incarnation: hello.Incarnation},
		tc:     tc, log: s.admission.Connections(), pendingOpens: map[perdure.ShardID]*pendingOpen{},
		reads: readBudget{peer: peer.Pending},
	}
	c.Conn = c
	if err := s.admit(c, hello); err != nil {
		c.log.Warn("rejected a connection", "peer", tc.Peer(), "err", err)
		return
	}
	defer s.removeConn(c)
	defer c.release()
	tc.OnWait(c.release)
	var f wire.Frame
	land := func(f *wire.Frame, n int) []byte { return c.payloadBuffer(s, f, n) }
	for {
		if err := tc.RecvInto(&f, land); err != nil {
			c.log.Info("connection ended", "slot", c.Slot, "incarnation", c.Incarnation, "err", err)
			return
		}
		c.hold()
		err := s.handle(c, &f)
		if f.Body != nil {
			s.buffers.Keep(f.Body)
		}
		if err != nil {
			c.release()
			c.log.Warn("closed a connection", "slot", c.Slot, "peer", tc.Peer(), "err", err)
			_ = transport.Refuse(tc, wire.Refusal{Reason: err.Error(), Temporary: errors.Is(err, errStaleConn)})
			return
		}
	}
}

// admit checks the peer's identity and welcomes it.
func (s *Server) admit(c *conn, hello wire.Hello) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var r wire.Refusal
	switch {
	case s.job == nil || s.conns == nil:
		return fmt.Errorf("this server has not joined a job yet") // the peer retries
	case hello.Job != s.job.ID:
		r.Reason = fmt.Sprintf("wrong job: this server works for job %s, the peer for job %q", s.job.ID, hello.Job)
	case hello.Role == wire.RoleObserver:
		c.Slot = perdure.NoSlot
	case hello.Role == wire.RoleServer:
		c.Slot, c.server, c.index = perdure.NoSlot, true, hello.Index
	case hello.Role != wire.RoleWorker:
		r.Reason = fmt.Sprintf("a server accepts workers, observers and servers, not role %q", hello.Role)
	case hello.Index < 0 || hello.Index >= perdure.MaxSlots:
		r.Reason = fmt.Sprintf("invalid slot %d: the job has %d slots", hello.Index, len(s.view.Slots))
	case !s.cfg.Keys.Ticket(s.job.ID, perdure.Slot(hello.Index), hello.Incarnation, hello.Name()).Matches(hello.Ticket):
		r.Reason = fmt.Sprintf("the coordinator has not assigned slot %d to this process with incarnation %d",
			hello.Index, hello.Incarnation)
	case hello.Index >= s.job.Slots && hello.Index >= len(s.view.Slots):
		// The peer retries.
		return fmt.Errorf("unknown slot %d: the job started with %d slots", hello.Index, s.job.Slots)
	case len(s.view.Slots) > hello.Index && hello.Incarnation < s.view.Slots[hello.Index].Incarnation:
		r = wire.Refusal{Fenced: true, Reason: fmt.Sprintf("slot %d was taken over by incarnation %d; this process "+
			"is incarnation %d",
			hello.Index, s.view.Slots[hello.Index].Incarnation, hello.Incarnation)}
	}
	if r.Reason != "" {
		_ = transport.Refuse(c.tc, r) // the connection is closed anyway
		return fmt.Errorf("%s", r.Reason)
	}
	c.job, c.role = s.job, hello.Role
	s.conns[c] = struct{}{}
	return c.tc.Send(wire.Control(wire.KindWelcome,
		wire.Welcome{Job: *s.job, Index: hello.Index, Incarnation: hello.Incarnation}))
}

func (s *Server) removeConn(c *conn) {
	s.mu.Lock()
	delete(s.conns, c)
	for _, w := range c.pendingOpens {
		w.cancelled.Store(true)
	}
	s.mu.Unlock()
	for _, sh := range s.heldShards() {
		sh.removeConn(c)
	}
}

// shard returns the shard that a frame addresses, or nil if the frame is of another generation or epoch than the
// replica held here. Such a frame is ignored, and its sender opens the shard again once it knows the newer view.
func (s *Server) shard(f *wire.Frame) *shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	sh := s.shards[f.Shard]
	if sh == nil || (*sh.publishedName.Load() != chain.FenceOf(&f.Header) && !s.cfg.mutations.Generations) {
		return nil
	}
	return sh
}

// handle processes one frame. An error ends the connection.
func (s *Server) handle(c *conn, f *wire.Frame) error {
	if err := c.checkFrame(f, c.job); err != nil {
		return err
	}
	switch {
	case f.Kind == wire.KindOpen && !c.server, f.Kind == wire.KindFollow && c.server:
		s.open(c, f)
		return nil
	case f.Kind == wire.KindEcho && f.Shard < 0:
		c.send(wire.Frame{Header: f.Header})
		return nil
	}
	sh := s.shard(f)
	if sh == nil && f.Kind == wire.KindSnapshot {
		f.Body = nil        // it may be memory of rows
		return errNotWanted // the sender must not wait for an answer
	}
	if sh == nil {
		return nil
	}
	if c.server {
		return s.fromServer(sh, c, f)
	}
	if f.Kind == wire.KindUpdate || f.Kind == wire.KindTick {
		return sh.handleUpdate(c, f)
	}
	return sh.handleRequest(c, f)
}

// fromServer processes a frame from another server.
func (s *Server) fromServer(sh *shard, c *conn, f *wire.Frame) error {
	switch f.Kind {
	case wire.KindUpdate, wire.KindTick, wire.KindFence, wire.KindDecide:
		if n := perdure.Slot(sh.slots.n.Load()); f.Slot < 0 || f.Slot >= n {
			return fmt.Errorf("invalid slot %d in an entry of kind %d: the job has %d slots", f.Slot, f.Kind, n)
		}
	case wire.KindMembership:
		if err := sh.slots.growForMembership(f, sh.job.Slots); err != nil {
			return err
		}
	case wire.KindEnd, wire.KindAddTable, wire.KindBase, wire.KindCut, wire.KindHold, wire.KindPassCut,
		wire.KindCaughtUp:
	case wire.KindSnapshot:
		return c.receivePiece(s, sh, f)
	default:
		return fmt.Errorf("unexpected frame of kind %d from a server", f.Kind)
	}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.fromPredecessorLocked(c, f, &c.batch)
	return nil
}

// open answers once the shard is ready in the epoch that the peer asked for.
func (s *Server) open(c *conn, f *wire.Frame) {
	if int(f.Shard) < 0 || int(f.Shard) >= c.job.Shards {
		return
	}
	w := &pendingOpen{c: c, h: f.Header}
	s.mu.Lock()
	if before := c.pendingOpens[f.Shard]; before != nil {
		before.cancelled.Store(true)
		delete(c.pendingOpens, f.Shard)
	}
	s.mu.Unlock()
	if sh := s.shard(f); sh != nil && w.deliver(sh, &c.batch) {
		return
	}
	s.mu.Lock()
	c.pendingOpens[f.Shard] = w // the shard may still be moving here, or the peer's view may be old
	s.mu.Unlock()
	s.deliverPendingOpens(f.Shard) // the shard may have arrived since the first check
}

// pendingOpen is an Open or a Follow that waits for an epoch of a shard.
type pendingOpen struct {
	c       *conn
	h       wire.Header
	claimed bool // a goroutine is passing it to the shard; guarded by Server.mu
	// cancelled is set when the connection has ended or has sent a newer request. The goroutine that sets over acquires
	// the shard's lock later, so a goroutine that finds it unset under that lock comes first.
	cancelled atomic.Bool
}

// deliver passes an Open or a Follow to a shard. It fails if the shard is not restored yet and does not know its state,
// or if the epoch has changed. For the batch see fromPredecessorLocked.
func (w *pendingOpen) deliver(sh *shard, to *batch) (taken bool) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	f := wire.Frame{Header: w.h}
	switch {
	case w.cancelled.Load():
		return true
	case w.c.server:
		return sh.fromPredecessorLocked(w.c, &f, to)
	}
	return sh.openLocked(w.c, &f)
}

// deliverPendingOpens passes to a shard the Opens and Follows that wait for its current epoch. Those that the shard
// cannot accept yet keep waiting. A goroutine that changes the shard in the meantime also calls opened. It may find
// requests that this call has taken, so this call checks again.
func (s *Server) deliverPendingOpens(id perdure.ShardID) {
	for again := true; again; {
		sh, look, found := s.claimPendingOpens(id)
		again = false
		for _, w := range found {
			entered := w.deliver(sh, nil)
			s.mu.Lock()
			if w.claimed = false; !entered {
				again = again || s.shards[id] != sh || sh.opening != look
			} else if w.c.pendingOpens[id] == w {
				delete(w.c.pendingOpens, id)
			}
			s.mu.Unlock()
		}
	}
}

// claimPendingOpens takes the requests that wait for the current epoch of a shard. look counts its calls.
func (s *Server) claimPendingOpens(id perdure.ShardID) (sh *shard, look uint64, found []*pendingOpen) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sh = s.shards[id]; sh == nil {
		return nil, 0, nil
	}
	sh.opening++
	for c := range s.conns {
		if w := c.pendingOpens[id]; w != nil && !w.claimed && chain.FenceOf(&w.h) == *sh.publishedName.Load() {
			w.claimed = true
			found = append(found, w)
		}
	}
	return sh, sh.opening, found
}

// heldShards returns the shards that this server holds.
func (s *Server) heldShards() []*shard {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Collect(maps.Values(s.shards))
}
